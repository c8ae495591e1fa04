"""Sides -> workloads: sessions, engines and modules opened, each module loaded once however many sides use it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ...core.dtypes import DType, dtype_from_name
from ...core.errors import BuildError, UsageError
from ...core.manifest import TensorRecord
from ...engines.feeds import check_feeds
from ...engines.onnxruntime_api import open_session, version
from ...model.config import ModelConfig
from ..runners import numpy_from_tensor
from .module import CudaModuleWorkload, module_workload
from .plan import PlanWorkload
from .sides import GraphSide, ModuleSide, Side
from .workload import CLOCKS, CallWorkload, ClockName, Feeds, Workload


@dataclass(frozen=True, slots=True)
class Reference:
    """The PyTorch module that a bundle was built from. inputs: in the order of its forward. layer: None for the whole."""

    config: ModelConfig
    layer: int | None
    inputs: tuple[TensorRecord, ...]
    load: Callable[[torch.dtype], nn.Module]


def feeds_for(side: Side, feeds: Feeds) -> dict[str, torch.Tensor]:
    """`feeds` as this side takes them: floats in its own type. Raises UsageError where they do not fit it."""
    if isinstance(side, ModuleSide):
        return dict(feeds)
    types = {record.name: dtype_from_name(record.dtype) for record in side.inputs}
    given = {name: _as(tensor, types.get(name)) for name, tensor in feeds.items()}
    try:
        check_feeds({n: numpy_from_tensor(t) for n, t in given.items()}, side.inputs, side.profiles)
    except UsageError as error:
        raise UsageError(
            f"bench {side.label}: {error.asked}", found=error.found, fix=error.fix
        ) from None
    return given


def open_sides(
    sides: Sequence[Side],
    reference: Callable[[], Reference],
    *,
    clock: ClockName,
    threads: int | None,
    opened: list[Workload],
) -> None:
    """Open every side and append its workload to `opened` at once, so that a caller can close what was opened."""
    modules: dict[tuple[DType, str], nn.Module] = {}  # a GPU's workload moves its module there
    for side in sides:
        if isinstance(side, GraphSide):
            opened.append(_open_graph(side, clock, threads))
            continue
        source = reference()
        key = (side.computes, side.device)
        if key not in modules:
            modules[key] = source.load(side.computes.torch)
        module, names = modules[key], [record.name for record in source.inputs]
        if side.device == "cuda":
            opened.append(CudaModuleWorkload(side.label, module, side.mode, names))
        else:
            opened.append(module_workload(side.label, module, side.mode, names, CLOCKS[clock]))


def _open_graph(side: GraphSide, clock: ClockName, threads: int | None) -> Workload:
    if side.target.is_tensorrt:
        return PlanWorkload(side.label, side.path, side.target.runtime, graph=side.cuda_graph)
    session = open_session(side.path, side.target.device, threads=threads or 0)
    outputs = [output.name for output in session.get_outputs()]

    def bind(feeds: Feeds) -> Callable[[], object]:
        arrays: Mapping[str, np.ndarray] = {n: numpy_from_tensor(t) for n, t in feeds.items()}

        def call() -> object:
            try:
                return session.run(outputs, arrays)
            except Exception as error:  # onnxruntime's classes share no base of their own
                words = " ".join(str(error).split())
                raise BuildError(f"bench {side.label}", found=f"{version()}: {words}") from None

        return call

    return CallWorkload(side.label, bind, CLOCKS[clock])


def _as(tensor: torch.Tensor, dtype: DType | None) -> torch.Tensor:
    if dtype is None or not (tensor.is_floating_point() and dtype.floating):
        return tensor
    return tensor.to(dtype.torch)
