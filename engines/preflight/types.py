"""Element types that TensorRT or an architecture lacks. Measured on TensorRT-RTX 1.7.1."""

from collections.abc import Iterator

import onnx_ir as ir

from ...graph.rules import domain_of
from ...graph.type_names import type_name
from .row import Check, Row, Spot
from .scene import Scene, integer, label

D = ir.DataType

# What a network's inputs and weights may be.
KNOWN = frozenset(
    {D.FLOAT, D.FLOAT16, D.BFLOAT16, D.FLOAT8E4M3FN, D.FLOAT4E2M1, D.INT4, D.INT8, D.UINT8, D.INT32, D.INT64, D.BOOL}
) | {D.DOUBLE}  # fmt: skip
CASTS = frozenset(
    {D.FLOAT, D.FLOAT16, D.BFLOAT16, D.DOUBLE, D.INT8, D.INT32, D.INT64, D.BOOL}
)  # what Cast may give
# An element type -> the first architecture that has it.
SINCE = {D.BFLOAT16: 80, D.FLOAT8E4M3FN: 89, D.FLOAT4E2M1: 100, D.INT4: 80}
STORED = frozenset(
    {D.INT8, D.INT4, D.FLOAT8E4M3FN, D.FLOAT4E2M1}
)  # weights that only DequantizeLinear may read
# Readers of stored weights beside DequantizeLinear.
_PASS = frozenset(
    {"DequantizeLinear", "Reshape", "Transpose", "Identity", "QuantizeLinear", "Gather"}
)


def _unknown(scene: Scene) -> Iterator[Spot]:
    graph = scene.model.graph
    for value in (*graph.inputs, *graph.initializers.values()):
        dtype = value.dtype or (value.const_value.dtype if value.const_value is not None else None)
        if dtype is not None and dtype not in KNOWN:
            yield Spot(str(value.name), f"element type {type_name(dtype)}")


def _casts(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Cast"):
        to = integer(node, "to", 0)
        if to and to not in {int(t) for t in CASTS}:
            name = type_name(D(to)) if to in {int(t) for t in D} else str(to)
            yield Spot(label(node), f"a Cast to {name}")


def _stored(scene: Scene) -> Iterator[Spot]:
    for value in scene.model.graph.initializers.values():
        dtype = value.const_value.dtype if value.const_value is not None else value.dtype
        if dtype not in STORED or dtype is None or not value.shape:  # a scalar is a zero point
            continue
        for node, index in value.uses():
            zero_point = node.op_type in ("QuantizeLinear", "DequantizeLinear") and index == 2
            if not zero_point and domain_of(node) == "" and node.op_type not in _PASS:
                yield Spot(label(node), f"it reads the {type_name(dtype)} weight {value.name!r}")


def _double(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(
        "MatMul", "Gemm", "Add", "Mul", "Div", "Sub", "Pow", "Sqrt", "Exp", "Softmax", "ReduceMean"
    ):
        if node.outputs and node.outputs[0].dtype == D.DOUBLE:
            yield Spot(label(node), "computes in fp64")
            return  # one says it


def _since(dtype: ir.DataType, first: int) -> Check:
    def check(scene: Scene) -> Iterator[Spot]:
        if 0 < scene.architecture < first and (where := scene.holders.get(dtype)):
            yield Spot(
                where, f"{type_name(dtype)} on {scene.target.device}"
            )  # one refuses the graph

    return check


def _architecture_rows() -> Iterator[Row]:
    for dtype, first in SINCE.items():
        name = type_name(dtype)
        yield Row(f"architecture.{name}", "*", f"the graph holds {name} and the target is older than sm{first}",
                  f"The build fails late: 'HW-specific datatypes: {name}'",
                  f"{name} needs sm{first} or newer: name such a target, or export in another precision",
                  _since(dtype, first))  # fmt: skip


ROWS = (
    *_architecture_rows(),
    Row("type.unknown", "*", "an input or weight has a type that TensorRT lacks", "The parser refuses the graph",
        "Use fp32, fp16, bf16, int64, int32, int8, bool", _unknown),
    Row("cast.type", "Cast", "it casts to a type that only Q/DQ can give, or none can", "The parser or the build refuses it",
        "Use QuantizeLinear for 8 bits and fewer, int32 for unsigned integers", _casts),
    Row("weight.stored-type", "*", "a quantised weight is read by something else than DequantizeLinear",
        "The build fails", "Put a DequantizeLinear behind the weight", _stored),
    Row("type.fp64", "*", "the graph computes in fp64", "It builds, and computes in fp32", "Export in fp32",
        _double, "silent"),
)  # fmt: skip
