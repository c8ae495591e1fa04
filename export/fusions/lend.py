"""Fuse a captured graph, whose weights are not in it yet, with the module's own tensors lent to it meanwhile.

Tables of cosines, masks and scales are recognised by their numbers; no tensor is copied and none stays.
"""

import contextlib
from collections.abc import Iterator, Mapping

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ..driver import Done, Pass
from ..layout import TRANSPOSED
from .fuse import fuse
from .report import FuseOptions, FusionReport


def fuse_captured(
    tensors: Mapping[str, torch.Tensor], options: FuseOptions
) -> tuple[Pass, list[FusionReport]]:
    """A pass that fuses a graph whose initializers have the names of `tensors`, and where its report will be."""
    reports: list[FusionReport] = []

    def run(model: ir.Model) -> Done:
        with _lent(model, tensors):
            reports.append(fuse(model, options))
        return Done("fuse", len(reports[-1].fused))

    return run, reports


@contextlib.contextmanager
def _lent(model: ir.Model, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    lent = [v for v in model.graph.initializers.values() if v.const_value is None]
    for value in lent:
        tensor = tensors[str(value.name)].detach()
        value.const_value = TorchTensor(tensor.mT if value.meta.get(TRANSPOSED) else tensor)
    try:
        yield
    finally:
        for value in lent:
            value.const_value = None
