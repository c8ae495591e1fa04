"""Every softmax of a graph, as one operator or spelled with exponentials.

Softmax(s);  exp(s) / sum(exp(s));  exp(LogSoftmax(s));  exp(s - logsumexp(s));  exp(s) / (sum(exp(s)) + sink);
exp(s) V / sum(exp(s))
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ..algebra.facts import Facts

UNSHIFTED = "exponentials of scores that are not shifted may overflow"


@dataclass(frozen=True, slots=True)
class Softmax:
    """The node that gives the weights, what is exponentiated, and the axis of the sum, counted from the end.

    product, quotient: where the division comes after the values, the product with them and its quotient.
    """

    node: ir.Node
    reads: ir.Value
    axis: int | None
    oddities: tuple[str, ...] = ()
    product: ir.Node | None = None
    quotient: ir.Value | None = None


def softmaxes(facts: Facts) -> Iterator[Softmax]:
    """Every softmax, in the order of the graph."""
    for node in facts.nodes:
        if node.domain or not node.outputs or not node.inputs or node.inputs[0] is None:
            continue
        rank = len(facts.dims(node.outputs[0]) or ())
        if not rank:
            continue
        if node.op_type == "Softmax":
            yield Softmax(node, node.inputs[0], _axis(node, rank))
        elif node.op_type in ("Div", "Mul"):
            for above, below in _quotients(facts, node):
                yield from _quotient(facts, node, above, below)
        elif node.op_type == "Exp":
            yield from _exponential(facts, node, rank)


def _axis(node: ir.Node, rank: int) -> int:
    return node.attributes.get_int("axis", -1) % rank - rank


def _below(facts: Facts, value: ir.Value | None, *op_types: str) -> ir.Node | None:
    node = facts.peel(value).producer() if value is not None else None
    return node if node is not None and node.op_type in op_types and not node.domain else None


def _quotients(facts: Facts, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """(above, below) of above / below and of above * reciprocal(below)."""
    first, second = node.inputs[:2]
    if first is None or second is None:
        return
    if node.op_type == "Div":
        yield first, second
        return
    for above, inverse in ((first, second), (second, first)):
        reciprocal = _below(facts, inverse, "Reciprocal")
        if reciprocal is not None and reciprocal.inputs[0] is not None:
            yield above, reciprocal.inputs[0]


def _quotient(facts: Facts, node: ir.Node, above: ir.Value, below: ir.Value) -> Iterator[Softmax]:
    product = _below(facts, above, "MatMul", "Einsum")
    power = _below(facts, product.inputs[0] if product is not None else above, "Exp")
    if power is None or power.inputs[0] is None:
        return
    odd: tuple[str, ...] = ()
    total = _total(facts, below)
    shifted = _below(facts, below, "Add")
    if total is None and shifted is not None:
        total = next((t for v in shifted.inputs if (t := _total(facts, v))), None)
        odd = ("a sink joins the softmax",)
    if total is None or total.inputs[0] is None:
        return
    if facts.key(total.inputs[0]) != facts.key(power.outputs[0]):
        return
    if not _is_shifted(facts, power.inputs[0]):
        odd = (*odd, UNSHIFTED)
    axes, rank = facts.axes(total), len(facts.dims(power.outputs[0]) or ())
    axis = axes[0] - rank if axes is not None and len(axes) == 1 else None
    if product is None:
        yield Softmax(node, power.inputs[0], axis, odd)
    elif axis == -1 and _in_rows(facts, product, rank):
        yield Softmax(power, power.inputs[0], axis, odd, product, node.outputs[0])


def _in_rows(facts: Facts, product: ir.Node, rank: int) -> bool:
    """Whether a product writes [..., rows, width], so that the sums of its rows [..., rows, 1] divide it."""
    if product.op_type == "MatMul":
        return len(facts.dims(product.outputs[0]) or ()) == rank
    equation = product.attributes.get_string("equation", "").replace(" ", "")
    terms, _, out = equation.partition("->")
    return "." not in equation and len(out) == rank and out[:-1] == terms.split(",")[0][:-1]


def _total(facts: Facts, value: ir.Value | None) -> ir.Node | None:
    """The ReduceSum that `value` is, one long along the axis of the sum."""
    node = _below(facts, value, "ReduceSum", "Unsqueeze", "Reshape")
    if node is not None and node.op_type != "ReduceSum":
        node = _below(facts, node.inputs[0], "ReduceSum")
    axes = facts.axes(node) if node is not None else None
    dims = facts.dims(node.inputs[0]) if node is not None else None
    if axes is None or dims is None:
        return None
    kept = tuple(1 if i in axes else d for i, d in enumerate(dims))
    return node if facts.dims(value) == kept else None


def _is_shifted(facts: Facts, value: ir.Value) -> bool:
    shift = _below(facts, value, "Sub")
    return shift is not None and _below(facts, shift.inputs[1], "ReduceMax") is not None


def _exponential(facts: Facts, node: ir.Node, rank: int) -> Iterator[Softmax]:
    logarithm = _below(facts, node.inputs[0], "LogSoftmax")
    if logarithm is not None and logarithm.inputs[0] is not None:
        yield Softmax(node, logarithm.inputs[0], _axis(logarithm, rank))
    shifted = _below(facts, node.inputs[0], "Sub")
    if shifted is None or shifted.inputs[0] is None:
        return
    total = _below(facts, shifted.inputs[1], "ReduceLogSumExp")
    if total is not None and total.inputs[0] is not None:
        same = facts.key(total.inputs[0]) == facts.key(shifted.inputs[0])
        if same and total.attributes.get_int("keepdims", 1) == 1:
            axes = facts.axes(total)
            axis = axes[0] - rank if axes is not None and len(axes) == 1 else None
            yield Softmax(node, shifted.inputs[0], axis)
