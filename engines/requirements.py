"""What a target needs of this machine before anything is built for it."""

import importlib.util

from ..core.errors import UnavailableError
from . import onnxruntime_api
from .gpu import gpus
from .target import Target
from .tensorrt_api import DOORS, is_installed, load_api


def check_available(target: Target) -> None:
    """Raise UnavailableError, naming what is missing and the command that brings it, unless building can work here.

    Full TensorRT needs its library and a GPU of the architecture; TensorRT-RTX only its library; ONNX Runtime the
    execution provider.
    """
    runtime = target.runtime
    if not target.is_tensorrt:
        onnxruntime_api.require(target.device)
        return
    door = DOORS[runtime]
    asked = f"target {target}"
    if not is_installed(runtime):
        raise UnavailableError(asked, found=f"{door.title} is not installed here", fix=door.install)
    if "ahead_of_time" in load_api(runtime).features:
        return
    _require_gpu(asked, target, f"{door.title} builds on the GPU it builds for")


def check_runnable(target: Target) -> None:
    """Raise UnavailableError, naming what is missing and what would help, unless engines can run here."""
    runtime = target.runtime
    if not target.is_tensorrt:
        onnxruntime_api.require(target.device)
        return
    door = DOORS[runtime]
    asked = f"run on {target}"
    if not is_installed(runtime):
        raise UnavailableError(asked, found=f"{door.title} is not installed here", fix=door.install)
    _require_gpu(asked, target, "running an engine needs its GPU")
    if importlib.util.find_spec("cuda") is None:
        raise UnavailableError(
            asked, found="cuda-python is not installed here", fix="pip install 'blockforge[gpu]'"
        )


def _require_gpu(asked: str, target: Target, why: str) -> None:
    found = gpus()
    if any(gpu.architecture in target.architectures for gpu in found):
        return
    has = ", ".join(f"{gpu.name} ({gpu.architecture})" for gpu in found) or "no NVIDIA GPU"
    raise UnavailableError(
        asked,
        found=f"{why}, and here is {has}",
        fix="Use a machine with a GPU of the target's architecture and its driver",
    )
