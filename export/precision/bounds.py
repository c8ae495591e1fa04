"""Magnitudes that algebra bounds for every input, so that no calibration has to have met them.

    RMSNorm    |y| <= sqrt(n) max|w|,  |y|_2 <= sqrt(n) max|w|       LayerNorm also, + max|b|
    softmax, sigmoid <= 1;  tanh <= 1;  cos, sin <= 1;  Clip to its limits
    rotation   |y| <= sqrt(2) |x|
    x W        |y| <= |x|_2 max column norm of W                     (Cauchy-Schwarz)
    sums, products, moves, Attention (an average of v)               from their operands

Bounds are per element (`peak`) and, where known, for the Euclidean norm over the last axis (`length`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ...core.domain import DOMAIN
from .structure import all_nodes, is_constant, is_float
from .weights import Weights

INF = math.inf


@dataclass(frozen=True, slots=True)
class Bound:
    """peak: largest magnitude of an element; length: largest norm over the last axis."""

    peak: float = INF
    length: float = INF

    def scaled(self, factor: float) -> "Bound":
        """Both times `factor`."""
        return Bound(self.peak * factor, self.length * factor)


_UNKNOWN = Bound()
_ONE = Bound(1.0)
_UNIT = frozenset({"Softmax", "Sigmoid", "Tanh", "Cos", "Sin", "Erf", "HardSigmoid", "Softsign"})
_KEEP = frozenset(
    {"Identity", "Transpose", "Neg", "Abs", "Relu", "Dropout", "Squeeze", "Unsqueeze", "Expand"}
)
_PEAK_ONLY = frozenset(
    [
        "Reshape",
        "Slice",
        "Split",
        "Concat",
        "Gather",
        "GatherElements",
        "Flatten",
        "Tile",
        "Trilu",
        "Max",
        "Min",
        "Where",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "Pad",
        "Gelu",
        "Swish",
    ]
)  # |gelu(x)|, |swish(x)| <= |x|


def bounds(model: ir.Model, weights: Weights) -> dict[ir.Value, float]:
    """The peak of every FP32 value that has a finite one."""
    known: dict[ir.Value, Bound] = {}

    def bound_of(value: ir.Value | None) -> Bound:
        if value is None:
            return Bound(0.0, 0.0)
        if is_constant(value) and is_float(value):
            return Bound(weights.largest(value)) if weights.size(value) < 1 << 22 else _UNKNOWN
        return known.get(value, _UNKNOWN)

    for node in all_nodes(model.graph):
        found = _bound(node, bound_of, weights)
        for value in node.outputs:
            known[value] = (
                found if value is node.outputs[0] or node.op_type == "Split" else _UNKNOWN
            )
    return {v: b.peak for v, b in known.items() if is_float(v) and math.isfinite(b.peak)}


def _bound(node: ir.Node, of: Callable[[ir.Value | None], Bound], weights: Weights) -> Bound:
    op, inputs = node.op_type, list(node.inputs)
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == DOMAIN and op in ("SwiGLU", "GeGLU"):
        gate, up = of(inputs[0]), of(inputs[1])
        return Bound(_times(gate.peak, up.peak), _times(gate.peak, up.length))
    if domain:
        return _UNKNOWN
    if op in ("RMSNormalization", "LayerNormalization"):
        return _norm(node, of)
    if op in _UNIT:
        return _ONE
    if op in _KEEP:
        return of(inputs[0])
    if op in _PEAK_ONLY:
        return Bound(max((of(v).peak for v in inputs if is_float(v)), default=INF))
    if op == "Clip":
        ends = [of(v).peak for v in inputs[1:] if v is not None]
        return Bound(min(of(inputs[0]).peak, max(ends) if len(ends) == 2 else INF))
    if op == "RotaryEmbedding":
        return of(inputs[0]).scaled(math.sqrt(2))
    if op in ("Add", "Sub"):
        a, b = of(inputs[0]), of(inputs[1])
        return Bound(a.peak + b.peak, a.length + b.length)
    if op == "Mul":
        a, b = of(inputs[0]), of(inputs[1])
        length = min(_times(a.peak, b.length), _times(a.length, b.peak))
        return Bound(_times(a.peak, b.peak), length)
    if op == "MatMul":
        return _product(inputs, of, weights)
    if op == "Attention":
        return Bound(of(inputs[2]).peak)
    return _UNKNOWN


def _norm(node: ir.Node, of: Callable[[ir.Value | None], Bound]) -> Bound:
    x, weight = node.inputs[0], node.inputs[1]
    axis = node.attributes.get_int("axis", -1)
    if x is None or x.shape is None or axis not in (-1, len(x.shape) - 1):
        return _UNKNOWN
    width = x.shape[-1]
    if not isinstance(width, int):
        return _UNKNOWN
    most = math.sqrt(width) * of(weight).peak
    bias = of(node.inputs[2]).peak if len(node.inputs) > 2 and node.inputs[2] is not None else 0.0
    return Bound(most + bias, most + math.sqrt(width) * bias)


def _product(
    inputs: list[ir.Value | None], of: Callable[[ir.Value | None], Bound], weights: Weights
) -> Bound:
    x, weight = inputs
    transposed = weight.producer() if weight is not None else None
    axis = -2
    if transposed is not None and transposed.op_type == "Transpose":
        weight, axis = transposed.inputs[0], -1
    x_length = of(x).length
    if weight is None or not is_constant(weight) or not math.isfinite(x_length):
        return _UNKNOWN
    if weight.shape is None or len(weight.shape) != 2:
        return _UNKNOWN
    return Bound(x_length * weights.longest_column(weight, axis))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b
