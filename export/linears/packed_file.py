"""Packing alone, for graphs that stay in 16 or 32 bits: linears that read one value become one product.

    model.onnx -> model.onnx with one MatMul for q, k and v, one for gate and up

TensorRT-RTX plans fewer kernels for a block then; see docs/kernels.md.
"""

from pathlib import Path

import onnx_ir as ir

from ...graph.io import load_model, save_model
from ...graph.output import require_output
from ...graph.spec import check_graph
from .find import EveryLinear, find_linears
from .pack import PARTS, pack_linears


def pack_file(source: str | Path, output: str | Path) -> dict[str, tuple[str, ...]]:
    """Write `source` to `output` with its linears packed; returns each packed weight or bias with what it was made of.

    The parts lie side by side along the output axis, in this order. Raises UsageError for a path that cannot be written
    or is read, ArtefactError for a damaged file.
    """
    require_output(source, output)
    model = load_model(source)
    packed = pack_model(model)
    save_model(model, output, self_contained=True)
    return packed


def pack_model(model: ir.Model) -> dict[str, tuple[str, ...]]:
    """Pack the linears of the main graph in place; see pack_file."""
    pack_linears(model, find_linears(model, EveryLinear()))
    check_graph(model)
    values = model.graph.initializers.values()
    return {str(v.name): v.meta[PARTS] for v in values if PARTS in v.meta}
