"""In which format the linears of a graph are quantised already, ours or another tool's."""

from collections.abc import Iterable

import onnx_ir as ir

from ...core.errors import UsageError
from ..linears.find import QUANTIZED_WEIGHT, Linear

_WEIGHTS = {
    ir.DataType.FLOAT8E4M3FN: "fp8-weights",
    ir.DataType.INT8: "int8-weights",
    ir.DataType.INT4: "int4-weights",
    ir.DataType.FLOAT4E2M1: "nvfp4",
}
_WITH_ACTIVATIONS = {"fp8-weights": "fp8", "int8-weights": "int8"}


def require_format(found: Iterable[Linear], wanted: str) -> None:
    """UsageError where linears are quantised already, and in another format than `wanted`."""
    done = {x.name: _format(x) for x in found if x.reason == QUANTIZED_WEIGHT}
    others = {name: form for name, form in done.items() if form != wanted}
    if others:
        name, form = next(iter(others.items()))
        raise UsageError(
            f"quantise to {wanted}",
            found=f"{len(others)} of its linears are quantised already, to another format: {name} to {form}",
            fix="Give the unquantised graph",
        )


def _format(linear: Linear) -> str:
    """The name of the format; that of the codes' type where we write no such format."""
    node = linear.weight.producer()
    codes = node.inputs[0] if node is not None else None
    assert codes is not None and codes.dtype is not None, linear.name
    weights = _WEIGHTS.get(codes.dtype, codes.dtype.name.lower())
    maker = linear.x.producer()
    both = maker is not None and maker.op_type == "DequantizeLinear"
    return _WITH_ACTIVATIONS.get(weights, f"{weights} with activations") if both else weights
