"""How a factor 2^-k passes through each operator.

same      y = f(a, b), f(ca, cb) = c f(a, b)      additions, moves, Relu, rotary embeddings
product   the factors multiply                    MatMul, Gemm, Mul, Conv
quotient  the second divides                      Div
norm      the factor of x drops out, once epsilon has its square; the weight's passes
gated     y = g(gate) * up: only up's passes      SwiGLU, GeGLU
attention softmax(q k^T scale) v: q's and k's go into scale, v's passes
power     y = x^p: the factor's power passes      Sqrt, Reciprocal, Pow by a constant
none      anything else: inputs and outputs as they are
"""

from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction

import onnx_ir as ir

from ...core.domain import DOMAIN
from .structure import is_float, scalar


class Kind(Enum):
    """The laws of the module text."""

    SAME = auto()
    PRODUCT = auto()
    QUOTIENT = auto()
    NORM = auto()
    GATED = auto()
    ATTENTION = auto()
    POWER = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Law:
    """One operator's law, by positions of inputs.

    data: what the law is about, in the order of its formula. weights: what is added or multiplied to the result of a
    norm or added to that of a product, and so has the result's factor. outputs: those that carry the result's
    factor; total: an output that carries the data's (AddRMSNorm). plain: float inputs that must have no factor.
    """

    kind: Kind
    data: tuple[int, ...]
    weights: tuple[int, ...] = ()
    outputs: tuple[int, ...] = (0,)
    total: int | None = None
    power: Fraction = Fraction(1)


_ALL = frozenset(["Add", "Sub", "Sum", "Mean", "Concat", "Max", "Min", "Clip"])
_FIRST = frozenset(
    [
        "Identity",
        "Neg",
        "Abs",
        "Relu",
        "LeakyRelu",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Slice",
        "Split",
        "Gather",
        "GatherElements",
        "GatherND",
        "Flatten",
        "Tile",
        "Trilu",
        "Dropout",
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "RotaryEmbedding",
        "CumSum",
    ]
)
_PAIRS = {"Where": (1, 2), "TensorScatter": (0, 1), "ScatterND": (0, 2), "ScatterElements": (0, 2)}
_PRODUCTS = frozenset({"MatMul", "Mul"})
_WITH_BIAS = frozenset({"Gemm", "Conv"})
_POWERS = {"Sqrt": Fraction(1, 2), "Reciprocal": Fraction(-1), "ReduceSumSquare": Fraction(2)}
_NORMS: dict[tuple[str, str], Law] = {
    ("", "RMSNormalization"): Law(Kind.NORM, (0,), (1,)),
    ("", "LayerNormalization"): Law(Kind.NORM, (0,), (1, 2)),
    ("", "SimplifiedLayerNormalization"): Law(Kind.NORM, (0,), (1,)),
    (DOMAIN, "RMSNorm"): Law(Kind.NORM, (0,), (1,)),
    (DOMAIN, "LayerNorm"): Law(Kind.NORM, (0,), (1, 2)),
    (DOMAIN, "AddRMSNorm"): Law(Kind.NORM, (0, 1), (2,), total=1),
    (DOMAIN, "AddLayerNorm"): Law(Kind.NORM, (0, 1), (2, 3), total=1),
}
_GATED = frozenset({(DOMAIN, "SwiGLU"), (DOMAIN, "GeGLU")})
_NOTHING = Law(Kind.NONE, (), outputs=())


def law_of(node: ir.Node) -> Law:
    """The node's law; `none` where its form has no law (a norm whose statistics are read)."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    op, count = node.op_type, len(node.inputs)
    everything = tuple(range(len(node.outputs)))
    if (domain, op) in _NORMS:
        return _norm(node, _NORMS[domain, op])
    if (domain, op) in _GATED:
        return Law(Kind.GATED, (0, 1))
    if domain:
        return _NOTHING
    if op in _ALL:
        return Law(Kind.SAME, tuple(range(count)), outputs=everything)
    if op in _FIRST:
        return Law(Kind.SAME, (0,), outputs=everything)
    if op in _PAIRS:
        return Law(Kind.SAME, _PAIRS[op])
    if op == "Pad":
        return Law(Kind.SAME, (0, 2))
    if op in _PRODUCTS:
        return Law(Kind.PRODUCT, (0, 1))
    if op in _WITH_BIAS:
        return Law(Kind.PRODUCT, (0, 1), (2,))
    if op == "Div":
        return Law(Kind.QUOTIENT, (0, 1))
    if op == "Attention":
        caches = any(v is not None for v in node.inputs[4:]) or len(node.outputs) > 1
        capped = node.attributes.get_float("softcap", 0.0) != 0
        return _NOTHING if caches or capped else Law(Kind.ATTENTION, (0, 1, 2))
    if op in _POWERS:
        return Law(Kind.POWER, (0,), power=_POWERS[op])
    exponent = scalar(node.inputs[1]) if op == "Pow" else None
    if exponent is not None and exponent * 2 == round(exponent * 2):
        return Law(Kind.POWER, (0,), power=Fraction(exponent))
    return _NOTHING


def _norm(node: ir.Node, law: Law) -> Law:
    statistics = [v for i, v in enumerate(node.outputs) if i > 0 and i != law.total]
    read = any(v.uses() or v.is_graph_output() for v in statistics)
    offset = "weight_offset" in node.attributes and node.attributes["weight_offset"].as_float() != 0
    if read:
        return _NOTHING
    weights = () if offset else tuple(i for i in law.weights if i < len(node.inputs))
    return Law(Kind.NORM, law.data, weights, total=law.total if len(node.outputs) > 1 else None)


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """The float tensor at an input position, None where there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value if is_float(value) else None
