"""Scaled dot-product attention in any spelling: softmax(softcap(scale * Q K^T) + masks) V, in one node.

Q [B, H, S, D], K [B, Hkv, T, D], V [B, Hkv, T, E]; H a multiple of Hkv.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from .attention_operator import Found, standard_attention
from .attention_products import read_products
from .heads import operand, straight_operand
from .match import Match, Refusal, escaping, node_name, region
from .scores import Scores, read_scores, swaps_last
from .softmaxes import Softmax, softmaxes

OTHER_AXIS = "the softmax does not run over the keys"


def find_attention(facts: Facts) -> Iterator[Match | Refusal]:
    """Every attention of the graph, and every softmax that is nearly one."""
    for softmax in softmaxes(facts):
        node, scores = softmax.node, read_scores(facts, softmax.reads)
        if scores is None:
            continue
        for what in softmax.oddities:
            scores = scores.odd(what)
        columns = softmax.axis == -2  # the keys lie along the rows of the scores
        if columns:
            scores = replace(scores, transposed=not scores.transposed)
            if scores.biases or scores.masks or scores.sink:
                scores = scores.odd("the masks are transposed")
        ends = (
            [End(node.outputs[0], softmax.product)]
            if softmax.product is not None
            else list(_ends(facts, scores, End(node.outputs[0], columns=columns)))
        )
        if not ends:
            continue
        fault = next((e.fault for e in ends if e.fault), "")
        if softmax.axis not in (-1, -2):
            fault = OTHER_AXIS
        if fault:
            yield Refusal("attn", fault, node_name(node))
            continue
        if len(ends) > 1:
            yield Refusal("attn", "the weights multiply more than one tensor", node_name(node))
            continue
        for what in ends[0].oddities:
            scores = scores.odd(what)
        found = _operands(facts, softmax, scores, ends[0])
        if isinstance(found, str):
            yield Refusal("attn", found, node_name(ends[0].product))
        else:
            yield _match(facts, found)


@dataclass(frozen=True, slots=True)
class End:
    """Weights on their way to the product with the values; fault: why they come to none."""

    weights: ir.Value
    product: ir.Node | None = None
    guarded: bool = False
    columns: bool = False  # the keys are the rows of the weights
    oddities: tuple[str, ...] = ()
    fault: str = ""

    def odd(self, weights: ir.Value, what: str) -> "End":
        return replace(self, weights=weights, oddities=(*self.oddities, what))


def _ends(facts: Facts, scores: Scores, start: End) -> Iterator[End]:
    """Every product that reads a softmax."""
    stack = [start]
    seen: set[ir.Value] = set()
    while stack and len(seen) < 16:
        end = stack.pop()
        value = end.weights
        if value in seen:
            continue
        seen.add(value)
        for node in facts.users(value):
            if node.domain or not node.outputs:
                continue
            op, out = node.op_type, node.outputs[0]
            if op == "Einsum" and len(node.inputs) == 2:
                yield replace(end, product=node)
            elif op == "MatMul":
                if node.inputs[int(end.columns)] is value:
                    yield replace(end, product=node)
                elif end.columns:
                    yield replace(end, fault=OTHER_AXIS)
            elif op in TRANSPARENT:
                stack.append(replace(end, weights=out))
            elif op == "Transpose" and swaps_last(facts, node):
                stack.append(replace(end, weights=out, columns=not end.columns))
            elif op == "Where" and (
                _nan_guard(facts, node, value) or _row_guard(facts, scores, node, value)
            ):
                stack.append(replace(end, weights=out, guarded=True))
            elif op in ("Reshape", "Unsqueeze", "Squeeze"):
                stack.append(end.odd(out, "the weights change their axes"))
            elif op in ("Slice", "Split"):
                stack.append(end.odd(out, "the sink's weight is cut off"))
            elif op == "Mul" and any(facts.constant(v) for v in node.inputs):
                stack.append(end.odd(out, "the weights are scaled"))
            elif any(u.op_type in ("MatMul", "Einsum") for u in facts.users(out)):
                yield replace(end, fault=f"{node_name(node)} changes the weights after the softmax")


def _nan_guard(facts: Facts, node: ir.Node, value: ir.Value) -> bool:
    condition = node.inputs[0].producer() if node.inputs[0] is not None else None
    return (
        condition is not None
        and condition.op_type == "IsNaN"
        and condition.inputs[0] is value
        and facts.scalar(node.inputs[1]) == 0.0
        and node.inputs[2] is value
    )


def _row_guard(facts: Facts, scores: Scores, node: ir.Node, value: ir.Value) -> bool:
    """Where(Equal(ReduceMax(bias), -inf), 0, weights): the guard that the operator's own definition has."""
    condition = node.inputs[0].producer() if node.inputs[0] is not None else None
    if condition is None or condition.op_type != "Equal" or facts.scalar(node.inputs[1]) != 0.0:
        return False
    peak = condition.inputs[0].producer() if condition.inputs[0] is not None else None
    if (
        facts.scalar(condition.inputs[1]) != float("-inf")
        or peak is None
        or peak.op_type != "ReduceMax"
    ):
        return False
    biases = {facts.key(v) for v, _ in scores.biases}
    return (
        node.inputs[2] is value
        and peak.inputs[0] is not None
        and biases == {facts.key(peak.inputs[0])}
    )


def _operands(facts: Facts, softmax: Softmax, scores: Scores, end: End) -> Found | str:
    product, weights = end.product, end.weights
    assert product is not None
    if softmax.product is not None:
        weights = next(v for v in product.inputs if v is not None)
    read = read_products(
        facts,
        scores.product,
        product,
        weights,
        transposed=scores.transposed,
        columns=end.columns,
    )
    if isinstance(read, str):
        return read
    if facts.constant(read.value):
        return "the values are constant"
    if scores.saturated:
        scores = scores.odd("a tanh without its factor")
    query = operand(facts, read.query, read.query_perm)
    key = operand(facts, read.key, read.key_perm)
    value = operand(facts, read.value, read.value_perm)
    assert query is not None and key is not None and value is not None
    if value.scale != 1.0:
        value = straight_operand(facts, read.value, read.value_perm)
    if query.repeats != 1:
        query = straight_operand(facts, read.query, read.query_perm)
    if query.value is key.value is value.value and facts.constant(query.value):
        return "it reads no tensor"
    root = softmax.quotient or product.outputs[0]
    return Found(
        softmax.node,
        scores,
        weights,
        product,
        root,
        query,
        key,
        value,
        read.output_perm,
        end.guarded,
    )


def _match(facts: Facts, found: Found) -> Match | Refusal:
    scores = found.scores
    where = node_name(found.root.producer())
    extras = (
        [v for v, _ in scores.biases]
        + [m.mask for m in scores.masks]
        + ([scores.sink] if scores.sink else [])
    )
    sources = [found.query.value, found.key.value, found.value.value]
    leaves = list(dict.fromkeys([*sources, *extras]))
    span = region(facts, [found.root], leaves)
    if isinstance(span, ir.Value):
        return Refusal("attn", f"it also depends on {span.name}", where)
    nodes, sizes = span
    near = [
        v
        for v in (*scores.product.inputs, *found.product.inputs)
        if v is not None and v is not found.weights
    ]
    core = region(facts, [found.root], [*near, *extras])
    escaped = escaping(facts, core[0], [found.root]) if not isinstance(core, ir.Value) else []
    if escaped:
        place = "a graph output" if escaped[0] in facts.outputs else "used elsewhere"
        return Refusal("attn", f"the inner value {escaped[0].name} is {place}", where)
    name = (
        "Attention"
        + ("Sink" if scores.sink is not None else "")
        + ("Softcap" if scores.softcap else "")
    )
    match = Match("attn", name, [found.root], [*leaves, *sizes], nodes)
    match.standard = standard_attention(facts, found, match.notes)
    match.details = {
        "scale": scores.scale * found.query.scale * found.key.scale,
        "softcap": scores.softcap,
    }
    return match
