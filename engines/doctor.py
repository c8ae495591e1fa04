"""What this machine can do: libraries, builders, devices, room, and each target's yes or no with the command that helps."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ..core.errors import UnavailableError
from . import onnxruntime_api
from .gpu import driver_version, gpus
from .requirements import check_available, check_runnable
from .target import Target, all_targets
from .tensorrt_api import DOORS, create_logger, is_installed, load_api

Status = Literal["ok", "missing", "problem"]
GIB = 1024**3
LEAST_MEMORY, LEAST_DISK = (
    4 * GIB,
    5 * GIB,
)  # the demo: builds take 2-3 GB, two precisions of bundle 2 GB
PYTHONS = ((3, 11), (3, 14))  # from, below

# distribution -> the command that brings it
NEEDED = ("torch", "onnx", "onnx-ir", "onnxscript", "safetensors", "gguf", "polygraphy", "pydantic")
OPTIONAL = {
    "cuda-python": "pip install 'blockforge[gpu]'  (to run TensorRT engines)",
    "nvidia-ml-py": "pip install 'blockforge[gpu]'  (to record clocks and power)",
    "triton": "pip install 'blockforge[gpu]'  (to compile plugin kernels)",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: fix is the command that would help, empty where nothing is wrong."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """For machines."""
        return asdict(self)


def probe() -> list[Finding]:
    """Look at everything, in the order a person would ask; never raises."""
    findings: list[Finding] = []
    for look in (
        _python,
        _libraries,
        _tensorrt_builders,
        _driver,
        _onnxruntime,
        _room,
        _targets,
    ):
        try:
            findings += look()
        except Exception as error:  # a doctor reports what it trips over
            name = look.__name__.strip("_")
            findings.append(Finding(name, "problem", f"{type(error).__name__}: {error}"))
    return findings


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fits = PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]
    fix = "" if fits else "Install Python 3.11, 3.12 or 3.13"
    yield Finding("python", "ok" if fits else "problem", version, fix)
    yield Finding("platform", "ok", f"{platform.platform(terse=True)}, {platform.machine()}")


def _libraries() -> Iterator[Finding]:
    for name in NEEDED:
        version = _version(name)
        fix = "" if version else "pip install blockforge"
        yield Finding(name, "ok" if version else "missing", version or "not installed", fix)
    for name, fix in OPTIONAL.items():
        version = _version(name)
        yield Finding(
            name, "ok" if version else "missing", version or "not installed", "" if version else fix
        )


def _tensorrt_builders() -> Iterator[Finding]:
    """Really make a builder: a library that imports may still fail to start."""
    for runtime, door in DOORS.items():
        if not is_installed(runtime):
            yield Finding(door.title, "missing", "not installed", door.install)
            continue
        try:
            api = load_api(runtime)
        except UnavailableError as error:
            yield Finding(door.title, "problem", error.found, error.fix)
            continue
        words: list[str] = []
        logger = create_logger(api, lambda severity, text, words=words: words.append(text))  # type: ignore[misc]
        try:
            builder = api.trt.Builder(logger)
        except Exception as error:  # pybind turns a null builder into TypeError or RuntimeError
            builder = None
            words.append(str(error))
        if builder is None:
            yield Finding(
                door.title,
                "problem",
                f"{api.version} makes no builder: {'; '.join(words)}",
                door.install,
            )
            continue
        builds = ", ".join(api.architectures()) or "the GPU at hand"
        yield Finding(door.title, "ok", f"{api.version}, a builder starts; builds for {builds}")


def _driver() -> Iterator[Finding]:
    version = driver_version()
    if version is None:
        yield Finding(
            "NVIDIA driver",
            "missing",
            "no CUDA driver",
            "Install the NVIDIA driver; without a GPU, engines can be built but not run",
        )
        return
    yield Finding("NVIDIA driver", "ok", f"serves CUDA {version}")
    found = gpus()
    for gpu in found:
        yield Finding(
            "GPU", "ok", f"{gpu.name}, {gpu.architecture}, {gpu.memory_bytes / GIB:.0f} GiB"
        )
    if not found:
        yield Finding("GPU", "missing", "the driver shows no device", "nvidia-smi")


def _onnxruntime() -> Iterator[Finding]:
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if _version(name)]
    if len(both) == 2:
        yield Finding(
            "onnxruntime",
            "problem",
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
            "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime",
        )
        return
    try:
        providers = onnxruntime_api.providers()
    except UnavailableError as error:
        yield Finding("onnxruntime", "missing", error.found, error.fix)
        return
    names = ", ".join(p.removesuffix("ExecutionProvider") for p in providers)
    yield Finding("onnxruntime", "ok", f"{onnxruntime_api.version()}, providers {names}")


def _room() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    fix = (
        ""
        if free >= LEAST_DISK
        else f"Free {LEAST_DISK // GIB} GiB here or build elsewhere with -o"
    )
    yield Finding("disk", "problem" if fix else "ok", f"{free / GIB:.1f} GiB free here", fix)
    memory = _available_memory()
    if memory is None:
        return
    fix = "" if memory >= LEAST_MEMORY else f"Have {LEAST_MEMORY // GIB} GiB free for a build"
    detail = f"{memory / GIB:.1f} GiB available, {os.cpu_count()} cores"
    yield Finding("memory", "problem" if fix else "ok", detail, fix)


def _available_memory() -> int | None:
    """Bytes that can be had without swapping (Linux), None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(kib) * 1024 if kib else None


def _targets() -> Iterator[Finding]:
    """One line for the targets of a runtime that can do the same here."""
    groups: dict[tuple[str, bool, bool], list[Target]] = {}
    for target in map(Target.parse, all_targets()):
        key = (target.runtime, _works(check_available, target), _works(check_runnable, target))
        groups.setdefault(key, []).append(target)
    for (runtime, builds, runs), targets in groups.items():
        status: Status = "ok" if builds else "missing"
        detail = f"build {_yes(builds)}, run {_yes(runs)}"
        check = check_runnable if builds else check_available
        reason = _refusal(check, targets[0])
        if reason:
            detail += f": {reason.found}"
        devices = ", ".join(target.device for target in targets)
        yield Finding(f"target {runtime}:{devices}", status, detail, reason.fix if reason else "")


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _works(check: Callable[[Target], None], target: Target) -> bool:
    return _refusal(check, target) is None


def _refusal(check: Callable[[Target], None], target: Target) -> UnavailableError | None:
    try:
        check(target)
    except UnavailableError as error:
        return error
    return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
