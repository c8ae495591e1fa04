"""Find the linears of a graph: products of an activation with one constant matrix.

    MatMul(x, w[in, out]), MatMul(x, Transpose(w[out, in])), Gemm(x, w, bias), Gemm(x, w, bias, transB=1)

A product of two activations is none; one whose weight already comes through DequantizeLinear is quantised already.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol

import onnx_ir as ir

from ...core.errors import UsageError

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
QUANTIZED_WEIGHT = "its weight is quantised already"
_PASSING = frozenset(  # what may stand between the head and the logits
    {
        "Cast",
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Mul",
        "Div",
        "Tanh",
        "Softmax",
        "LogSoftmax",
    }
)


class Choice(Protocol):
    """Which linears are asked for: the one that gives the logits, too? keep: all but these; only: these alone."""

    @property
    def head(self) -> bool:
        """Whether the product that gives the logits is one of them."""

    @property
    def keep(self) -> tuple[str, ...]:
        """Names or shell patterns."""

    @property
    def only(self) -> tuple[str, ...]:
        """Names or shell patterns; none: no such restriction."""


@dataclass(frozen=True, slots=True)
class EveryLinear:
    """All of them."""

    head: bool = True
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """One product with a constant matrix, stored [in, out] or, where `transposed`, [out, in].

    wants_transposed: whether the product reads its operand as [out, in] (Gemm with transB).
    reason: why it stays in high precision, empty where it is to be quantised.
    """

    node: ir.Node
    name: str
    x: ir.Value
    weight: ir.Value
    transposed: bool
    wants_transposed: bool
    size_in: int
    size_out: int
    reason: str = ""

    @property
    def axis_out(self) -> int:
        """The axis of the product's operand that counts output channels."""
        return 0 if self.wants_transposed else 1


def find_linears(model: ir.Model, options: Choice) -> list[Linear]:
    """Every linear of the main graph in order, those left alone with their reason.

    Raises UsageError for a pattern that fits none of them; a graph that is quantised already may have lost the name.
    """
    found = []
    starts_at_ids = any(
        v.dtype in (ir.DataType.INT64, ir.DataType.INT32) for v in model.graph.inputs
    )
    for node in model.graph:
        linear = _linear(node)
        if linear is not None:
            reason = linear.reason or _choice(linear, options, starts_at_ids)
            found.append(replace(linear, reason=reason))
    if found and not any(x.reason == QUANTIZED_WEIGHT for x in found):
        _require_matches(found, options)
    return found


def _require_matches(found: Sequence[Linear], options: Choice) -> None:
    for key, patterns in (("keep", options.keep), ("only", options.only)):
        for pattern in patterns:
            if not any(matches(n, (pattern,)) for x in found for n in _names(x)):
                names = [x.name for x in found]
                near = get_close_matches(pattern, names, 3, 0)
                raise UsageError(
                    f"{key} {pattern!r}",
                    found="it fits no linear's name",
                    fix=f"Names here: {', '.join(near)}{', ...' if len(names) > len(near) else ''}",
                )


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a linear's name is one of `patterns`, or fits one as a shell pattern."""
    return any(name == p or fnmatchcase(name, p) for p in patterns)


def inner_products(model: ir.Model) -> list[ir.Node]:
    """Linears inside subgraphs and functions, which are left alone."""
    graphs = [*model.graph.subgraphs(), *(f.graph for f in model.functions.values())]
    return [n for g in graphs for n in g if _linear(n) is not None]


def _linear(node: ir.Node) -> Linear | None:
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Gemm"):
        return None
    x, operand = node.inputs[:2]
    if x is None or operand is None or x.const_value is not None:
        return None
    gemm = node.op_type == "Gemm"
    wants = gemm and bool(node.attributes.get_int("transB", 0))
    weight, transposed, reason = operand, wants, ""
    producer = operand.producer()
    if producer is not None and producer.op_type == "Transpose" and len(operand.uses()) >= 1:
        source = producer.inputs[0]
        swapped = tuple(producer.attributes.get_ints("perm", [1, 0])) == (1, 0)
        if source is not None and swapped:
            weight, transposed = source, not transposed
    producer = weight.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        stored = producer.inputs[0]
        if stored is None or not _constant(stored):
            return None
        reason = QUANTIZED_WEIGHT
    elif not _constant(weight):
        return None
    if weight.shape is None or len(weight.shape) != 2 or weight.dtype not in FLOATS:
        return None
    rows, columns = weight.shape.numpy()
    size_in, size_out = (columns, rows) if transposed else (rows, columns)
    if not reason and gemm:
        reason = _gemm_reason(node)
    name = _name(node, weight)
    return Linear(node, name, x, weight, transposed, wants, size_in, size_out, reason)


def _constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def _gemm_reason(node: ir.Node) -> str:
    if node.attributes.get_int("transA", 0):
        return "its activation is transposed"
    if node.attributes.get_float("alpha", 1.0) != 1 or node.attributes.get_float("beta", 1.0) != 1:
        return "its alpha or beta is not 1"
    return ""


def _name(node: ir.Node, weight: ir.Value) -> str:
    """The module's path: from the node (`…q_proj/MatMul`) or the weight (`…q_proj.weight`), else the node's name."""
    name = node.name or node.outputs[0].name or ""
    module = name.rpartition("/")[0]
    if module:
        return module.strip("/")
    if weight.name and weight.name.endswith(".weight"):
        return weight.name.removesuffix(".weight")
    return name


def _names(linear: Linear) -> tuple[str, str, str]:
    """What a pattern may fit."""
    return linear.name, linear.node.name or "", linear.weight.name or ""


def _choice(linear: Linear, options: Choice, starts_at_ids: bool) -> str:
    names = _names(linear)
    if options.only and not any(matches(n, options.only) for n in names):
        return "not among those asked for (only)"
    if any(matches(n, options.keep) for n in names):
        return "kept high as asked (keep)"
    if not options.head and starts_at_ids and _gives_output(linear.node):
        return "it gives the logits (head)"
    return ""


def _gives_output(node: ir.Node) -> bool:
    """Whether nothing but casts, shapes and caps stands between the product and a graph output."""
    queue = [node.outputs[0]]
    while queue:
        value = queue.pop()
        if value.is_graph_output():
            return True
        for use in value.uses():
            others = [v for v in use.node.inputs if v is not None and v is not value]
            bias = use.node.op_type == "Add" and all(_constant(v) for v in others)
            if bias or (use.node.op_type in _PASSING and all(_constant(v) for v in others)):
                queue += use.node.outputs
    return False


def share_of_flops(linears: list[Linear]) -> Iterator[tuple[Linear, float]]:
    """Each linear's share of the multiplications of all of them (each sees the same tokens)."""
    total = math.fsum(x.size_in * x.size_out for x in linears) or 1.0
    for linear in linears:
        yield linear, linear.size_in * linear.size_out / total
