"""ONNX function bodies: the same operator in standard ones, written as ONNX text.

Everything between the casts is float32, as in the kernels, so that a body loses no more than they do and runs
in ONNX Runtime for bfloat16 too. The parts name their values alike: x32, total32, n32, y32.
"""

import onnx

from ..core.domain import DOMAIN
from .table import Attribute, Table

OPSET = 24

_ROOT = """
    last = Constant<value_ints = [-1]>()
    square = Mul(centred, centred)
    mean_square = ReduceMean<keepdims = 1>(square, last)
    inside = Constant<value_float: float = @epsilon>()
    outside = Constant<value_float: float = @epsilon_outside>()
    shifted = Add(mean_square, inside)
    root = Sqrt(shifted)
    divisor = Add(root, outside)
    unit = Div(centred, divisor)
    weight32 = Cast<to = 1>(weight)
    offset = Constant<value_float: float = @weight_offset>()
    scaled_by = Add(weight32, offset)
    n32 = Mul(unit, scaled_by)
"""

RMS = "centred = Identity(total32)" + _ROOT

LAYER = (
    """
    last_axis = Constant<value_ints = [-1]>()
    mean = ReduceMean<keepdims = 1>(total32, last_axis)
    centred = Sub(total32, mean)
"""
    + _ROOT
)

BIAS = """
    bias32 = Cast<to = 1>(bias)
    y32 = Add(n32, bias32)
"""

NARROW = "y = CastLike(y32, x)"

QUANTISE = """
    scale32 = Cast<to = 1>(scale)
    y = QuantizeLinear<output_dtype = 17, saturate = 1>(y32, scale32)
"""


def function(table: Table, *parts: str) -> onnx.FunctionProto:
    """The body of `table`'s operator; parts are lines of ONNX text, from its inputs to its outputs."""
    attributes = f"<{', '.join(map(_attribute, table.attributes))}>" if table.attributes else ""
    inputs, outputs = (", ".join(t.name for t in ts) for ts in (table.inputs, table.outputs))
    text = (
        f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>\n{table.name} {attributes}({inputs})'
    )
    parsed: onnx.FunctionProto = onnx.parser.parse_function(
        f"{text} => ({outputs}) {{\n" + "\n".join(parts) + "\n}"
    )
    return parsed


def _attribute(attribute: Attribute) -> str:
    if attribute.default is None:
        return attribute.name
    default = attribute.default
    return f"{attribute.name}: {attribute.kind} = " + (
        f'"{default}"' if isinstance(default, str) else str(default)
    )
