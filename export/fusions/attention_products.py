"""The two products of an attention, MatMul or Einsum, as queries, keys and values with their axes in one order.

MatMul(q [B, H, S, D], kT [B, H, D, T])              query as it is, key with its last two axes swapped
Einsum("bqhd,bkhd->bhqk", q, k)                      both transposed to [B, H, S, D] and [B, H, T, D]
"""

from dataclasses import dataclass

import onnx_ir as ir

from ..algebra.einsum import einsum_terms
from ..algebra.facts import Facts

Perm = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Products:
    """Queries, keys and values, each [..., rows, width] when read through its perm, and how the result is written."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    query_perm: Perm
    key_perm: Perm
    value_perm: Perm
    output_perm: Perm | None  # from [..., rows, width], None for none


def read_products(
    facts: Facts,
    first: ir.Node,
    second: ir.Node,
    weights: ir.Value,
    *,
    transposed: bool,
    columns: bool = False,
) -> Products | str:
    """The products whose scores (or their transpose) are softmaxed into `weights`; a reason where they are none.

    columns: the keys are the rows of the weights, their queries the columns.
    """
    left, right = first.inputs[0], first.inputs[1]
    values = second.inputs[1 if second.inputs[0] is weights else 0]
    assert left is not None and right is not None and values is not None
    ranks = [len(facts.dims(v) or ()) for v in (left, right, values)]
    if min(ranks) < 2:
        return "the sizes are not known"
    if first.op_type == "Einsum":
        sides = _scores_einsum(first, left, right, ranks[:2], transposed=transposed)
        if isinstance(sides, str):
            return sides
        query, key, query_perm, key_perm = sides
    elif transposed:
        query, key, query_perm, key_perm = right, left, _swap(ranks[1]), _straight(ranks[0])
    else:
        query, key, query_perm, key_perm = left, right, _straight(ranks[0]), _swap(ranks[1])
    value_perm, output = _straight(ranks[2]), None
    if second.op_type == "Einsum":
        ends = _result_einsum(facts, second, weights, columns=columns)
        if isinstance(ends, str):
            return ends
        value_perm, output = ends
    elif columns:  # values^T weights
        value_perm, output = _swap(ranks[2]), _swap(len(facts.dims(second.outputs[0]) or ()))
    return Products(query, key, values, query_perm, key_perm, value_perm, output)


def _straight(rank: int) -> Perm:
    return tuple(range(rank))


def _swap(rank: int) -> Perm:
    return (*range(rank - 2), rank - 1, rank - 2)


def _scores_einsum(
    node: ir.Node, left: ir.Value, right: ir.Value, ranks: list[int], *, transposed: bool
) -> tuple[ir.Value, ir.Value, Perm, Perm] | str:
    terms = einsum_terms(node, ranks)
    if terms is None:
        return "the equation of the scores is not a product of two tensors"
    (a, b), out = terms
    if transposed:
        out = out[:-2] + out[-1] + out[-2]
    if len(out) < 2:
        return "the equation of the scores is not queries by keys"
    batch, row, column = out[:-2], out[-2], out[-1]
    if row in b and row not in a:  # the keys are written first
        left, right, a, b = right, left, b, a
    shared = [c for c in a if c in b and c not in out]
    if len(shared) != 1 or row not in a or row in b or column not in b or column in a:
        return "the equation of the scores is not queries by keys"
    if any(c not in a for c in batch) or set(b) - {*batch, column, *shared}:
        return "the equation of the scores has an axis of its own"
    query = tuple(a.index(c) for c in (*batch, row, shared[0]))
    key = tuple(b.index(c) for c in (*batch, column, shared[0]) if c in b)  # grouped: shared keys
    return left, right, query, key


def _result_einsum(
    facts: Facts, node: ir.Node, weights: ir.Value, *, columns: bool
) -> tuple[Perm, Perm | None] | str:
    terms = einsum_terms(node, [len(facts.dims(v) or ()) for v in node.inputs])
    if terms is None:
        return "the equation of the result is not a product of two tensors"
    (a, b), out = terms
    if node.inputs[0] is not weights:
        a, b = b, a
    batch, rows, column = a[:-2], a[-2], a[-1]
    if columns:
        rows, column = column, rows
    width = [c for c in b if c not in a]
    if len(width) != 1 or column in out or any(c not in out for c in batch) or column not in b:
        return "the equation of the result is not weights by values"
    value = tuple(b.index(c) for c in (*batch, column, width[0]) if c in b)
    straight = (*batch, rows, width[0])
    if set(straight) != set(out):
        return "the equation of the result is not weights by values"
    output = tuple(straight.index(c) for c in out)
    return value, None if output == _straight(len(out)) else output
