"""Every softmax of a graph, as one operator or spelled with exponentials.

Softmax(s);  exp(s) / sum(exp(s));  exp(LogSoftmax(s));  exp(s - logsumexp(s));  exp(s) / (sum(exp(s)) + sink)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ..algebra.facts import Facts


@dataclass(frozen=True, slots=True)
class Softmax:
    """The node that gives the weights, what is exponentiated, and whether the sum runs over the last axis."""

    node: ir.Node
    reads: ir.Value
    over_last: bool
    oddities: tuple[str, ...] = ()


def softmaxes(facts: Facts) -> Iterator[Softmax]:
    """Every softmax, in the order of the graph."""
    for node in facts.nodes:
        if node.domain or not node.outputs or not node.inputs or node.inputs[0] is None:
            continue
        rank = len(facts.dims(node.outputs[0]) or ())
        if not rank:
            continue
        if node.op_type == "Softmax":
            yield Softmax(node, node.inputs[0], _last(node, rank))
        elif node.op_type == "Div":
            yield from _quotient(facts, node, rank)
        elif node.op_type == "Exp":
            yield from _exponential(facts, node, rank)


def _last(node: ir.Node, rank: int) -> bool:
    return node.attributes.get_int("axis", -1) % rank == rank - 1


def _below(facts: Facts, value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = facts.peel(value).producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _quotient(facts: Facts, node: ir.Node, rank: int) -> Iterator[Softmax]:
    power = _below(facts, node.inputs[0], "Exp")
    if power is None or power.inputs[0] is None:
        return
    odd: tuple[str, ...] = ()
    total = _below(facts, node.inputs[1], "ReduceSum")
    shifted = _below(facts, node.inputs[1], "Add")
    if total is None and shifted is not None:
        total = next((t for v in shifted.inputs if (t := _below(facts, v, "ReduceSum"))), None)
        odd = ("a sink joins the softmax",)
    if total is None or total.inputs[0] is None or total.attributes.get_int("keepdims", 1) != 1:
        return
    if facts.key(total.inputs[0]) == facts.key(power.outputs[0]):
        yield Softmax(node, power.inputs[0], facts.axes(total) == [rank - 1], odd)


def _exponential(facts: Facts, node: ir.Node, rank: int) -> Iterator[Softmax]:
    logarithm = _below(facts, node.inputs[0], "LogSoftmax")
    if logarithm is not None and logarithm.inputs[0] is not None:
        yield Softmax(node, logarithm.inputs[0], _last(logarithm, rank))
    shifted = _below(facts, node.inputs[0], "Sub")
    if shifted is None or shifted.inputs[0] is None:
        return
    total = _below(facts, shifted.inputs[1], "ReduceLogSumExp")
    if total is not None and total.inputs[0] is not None:
        same = facts.key(total.inputs[0]) == facts.key(shifted.inputs[0])
        if same and total.attributes.get_int("keepdims", 1) == 1:
            yield Softmax(node, shifted.inputs[0], facts.axes(total) == [rank - 1])
