"""Scaled dot-product attention in any spelling: softmax(softcap(scale * Q K^T) + masks) V, in one node.

Q [B, H, S, D], K [B, Hkv, T, D], V [B, Hkv, T, E]; H a multiple of Hkv.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from .attention_operator import standard_attention
from .heads import Operand, operand
from .match import Match, Refusal, escaping, node_name, region
from .scores import Scores, read_scores


@dataclass(slots=True)
class Found:
    """A proven attention."""

    softmax: ir.Node
    scores: Scores
    weights: ir.Value  # what multiplies the values
    root: ir.Value
    query: Operand
    key: Operand
    value: Operand
    output_perm: tuple[int, ...] | None  # from [B, H, S, E] to the root, None for none
    guarded: bool  # rows of NaN become zero


def find_attention(facts: Facts) -> Iterator[Match | Refusal]:
    """Every attention of the graph, and every softmax that is nearly one."""
    for node, argument, over_keys in _softmaxes(facts):
        scores = read_scores(facts, argument)
        if scores is None:
            continue
        ends = list(_ends(facts, scores, node.outputs[0]))
        if not ends:
            continue
        if not over_keys:
            yield Refusal("attn", "the softmax does not run over the keys", node_name(node))
            continue
        if len(ends) > 1:
            yield Refusal("attn", "the weights multiply more than one tensor", node_name(node))
            continue
        weights, product, guarded, oddities = ends[0]
        for what in oddities:
            scores = scores.odd(what)
        found = _operands(facts, node, scores, weights, product, guarded)
        if isinstance(found, str):
            yield Refusal("attn", found, node_name(product))
        else:
            yield _match(facts, found)


def _softmaxes(facts: Facts) -> Iterator[tuple[ir.Node, ir.Value, bool]]:
    """(node, what it reads, whether it runs over the last axis) of every softmax, written as one node or as exp / sum."""
    for node in facts.nodes:
        if node.domain or not node.inputs or node.inputs[0] is None:
            continue
        rank = len(facts.dims(node.outputs[0]) or ()) if node.outputs else 0
        if node.op_type == "Softmax" and rank:
            yield node, node.inputs[0], node.attributes.get_int("axis", -1) % rank == rank - 1
        elif node.op_type == "Div" and rank and node.inputs[1] is not None:
            power, total = (
                facts.peel(node.inputs[0]).producer(),
                facts.peel(node.inputs[1]).producer(),
            )
            if (
                power is None
                or total is None
                or (power.op_type, total.op_type) != ("Exp", "ReduceSum")
            ):
                continue
            if total.inputs[0] is not None and facts.key(total.inputs[0]) == facts.key(
                power.outputs[0]
            ):
                same = power.inputs[0] is not None and total.attributes.get_int("keepdims", 1) == 1
                if same and power.inputs[0] is not None:
                    yield node, power.inputs[0], facts.axes(total) == [rank - 1]


def _ends(
    facts: Facts, scores: Scores, start: ir.Value
) -> Iterator[tuple[ir.Value, ir.Node, bool, tuple[str, ...]]]:
    """(weights, product, guarded, oddities) of every product that reads a softmax as its left side."""
    stack: list[tuple[ir.Value, bool, tuple[str, ...]]] = [(start, False, ())]
    seen: set[ir.Value] = set()
    while stack and len(seen) < 16:
        value, guarded, odd = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        for node in facts.users(value):
            if node.domain or not node.outputs:
                continue
            op, out = node.op_type, node.outputs[0]
            if op == "MatMul" or (op == "Einsum" and len(node.inputs) == 2):
                if node.inputs[0] is value:
                    yield value, node, guarded, odd
            elif op in TRANSPARENT:
                stack.append((out, guarded, odd))
            elif op == "Where" and (
                _nan_guard(facts, node, value) or _row_guard(facts, scores, node, value)
            ):
                stack.append((out, True, odd))
            elif op in ("Reshape", "Unsqueeze", "Squeeze"):
                stack.append((out, guarded, (*odd, "the weights change their axes")))
            elif op in ("Slice", "Split"):
                stack.append((out, guarded, (*odd, "the sink's weight is cut off")))
            elif op == "Mul" and any(facts.constant(v) for v in node.inputs):
                stack.append((out, guarded, (*odd, "the weights are scaled")))


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


def _operands(
    facts: Facts,
    softmax: ir.Node,
    scores: Scores,
    weights: ir.Value,
    product: ir.Node,
    guarded: bool,
) -> Found | str:
    left, right = scores.product.inputs[0], scores.product.inputs[1]
    values = product.inputs[1]
    assert left is not None and right is not None and values is not None
    if facts.constant(values):
        return "the values are constant"
    if scores.saturated:
        scores = scores.odd("a tanh without its factor")
    dims = facts.dims(left), facts.dims(right), facts.dims(values)
    if any(d is None or len(d) < 2 for d in dims):
        return "the sizes are not known"
    perms = _einsum(scores.product, product, [len(d or ()) for d in dims])
    if isinstance(perms, str):
        return perms
    query_perm, key_perm, value_perm, output_perm = perms
    query = operand(facts, left, query_perm)
    key = operand(facts, right, key_perm)
    value = operand(facts, values, value_perm)
    assert query is not None and key is not None and value is not None
    if value.scale != 1.0:
        value = Operand(values, tuple((dims[2] or ())[p] for p in value_perm), value_perm)
    if query.repeats != 1:
        query = Operand(left, tuple((dims[0] or ())[p] for p in query_perm), query_perm)
    if query.value is key.value is value.value and facts.constant(query.value):
        return "it reads no tensor"
    return Found(
        softmax, scores, weights, product.outputs[0], query, key, value, output_perm, guarded
    )


Perm = tuple[int, ...]


def _einsum(
    first: ir.Node, second: ir.Node, ranks: list[int]
) -> tuple[Perm, Perm, Perm, Perm | None] | str:
    """How Q, K and V are read as [..., rows, width] and the result written, for products of either kind."""
    query_rank, key_rank, value_rank = ranks
    query: Perm = tuple(range(query_rank))
    key: Perm = (*range(key_rank - 2), key_rank - 1, key_rank - 2)
    value: Perm = tuple(range(value_rank))
    output: Perm | None = None
    if first.op_type == "Einsum":
        terms = _terms(first)
        if terms is None:
            return "the equation of the scores is not a product of two tensors"
        a, b, out = terms
        shared = [c for c in a if c in b and c not in out]
        batch, row, column = out[:-2], out[-2], out[-1]
        if len(shared) != 1 or row not in a or row in b or column not in b or column in a:
            return "the equation of the scores is not queries by keys"
        if any(c not in a for c in batch) or set(b) - {*batch, column, *shared}:
            return "the equation of the scores has an axis of its own"
        query = tuple(a.index(c) for c in (*batch, row, shared[0]))
        key = tuple(
            b.index(c) for c in (*batch, column, shared[0]) if c in b
        )  # grouped queries share a key
    if second.op_type == "Einsum":
        terms = _terms(second)
        if terms is None:
            return "the equation of the result is not a product of two tensors"
        a, b, out = terms
        batch, rows_, column = a[:-2], a[-2], a[-1]
        width = [c for c in b if c not in a]
        if len(width) != 1 or column in out or any(c not in out for c in batch) or column not in b:
            return "the equation of the result is not weights by values"
        value = tuple(b.index(c) for c in (*batch, column, width[0]) if c in b)
        straight = (*batch, rows_, width[0])
        output = tuple(straight.index(c) for c in out)
        if output == tuple(range(len(out))):
            output = None
    return query, key, value, output


def _terms(node: ir.Node) -> tuple[str, str, str] | None:
    equation = node.attributes.get_string("equation", "") or ""
    left, arrow, out = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if (
        not arrow
        or len(parts) != 2
        or "." in equation
        or any(len(set(t)) != len(t) for t in (*parts, out))
    ):
        return None
    return parts[0], parts[1], out


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
    near = [v for v in (*scores.product.inputs, found.root.producer().inputs[1]) if v is not None]  # type: ignore[union-attr]
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
