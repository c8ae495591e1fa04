"""Products with small matrices of coefficients: which lane of which operand each term of a result lane reads.

MatMul([[cos, -sin], [sin, cos]] [4, 2, 2], x [4, 2, 1])     Einsum("sdij,bhsdj->bhsdi")
"""

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .einsum import einsum_terms
from .facts import Facts
from .lane_shapes import Shape, lane_shape

LONGEST = 4
Index = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """out[lane] = sum over the last axis of the indices: data[data_index] * factor[factor_index]."""

    data: ir.Value
    data_shape: Shape
    data_index: Index
    factor: ir.Value
    factor_shape: Shape
    factor_index: Index
    spread: (
        tuple[int, ...] | None
    )  # the axes before the lanes (from their end) that the factor has, None where it spreads as usual


def contraction(
    facts: Facts, node: ir.Node, shape: Shape, is_factor: Callable[[ir.Value, ir.Value], bool]
) -> Contraction | None:
    """A MatMul or Einsum over few lanes as a contraction; is_factor says which operand (of the two) the coefficient is."""
    written = _terms(facts, node)
    if written is None:
        return None
    (a, b), out = written
    lanes, before = out[len(out) - len(shape) :], out[: len(out) - len(shape)]
    summed = [c for c in a if c in b and c not in out]
    if len(summed) != 1 or any(c not in out for c in (set(a) | set(b)) - set(summed)):
        return None
    for (data, own), (factor, other) in _pairs(node, a, b):
        ours, others = (_suffix(term, lanes + summed[0]) for term in (own, other))
        data_shape = lane_shape(facts.dims(data), len(ours))
        factor_shape = lane_shape(facts.dims(factor), len(others))
        if data_shape is None or factor_shape is None or summed[0] not in ours:
            continue
        count = data_shape[ours.index(summed[0])]
        prefixes = own[: len(own) - len(ours)], other[: len(other) - len(others)]
        if count > LONGEST or not before.endswith(prefixes[0]) or set(prefixes[1]) - set(before):
            continue
        if not set(others) >= {summed[0]} or not is_factor(factor, data):
            continue
        places = dict(zip(lanes + summed[0], np.indices((*shape, count)), strict=True))
        return Contraction(
            data,
            data_shape,
            _index(ours, data_shape, places),
            factor,
            factor_shape,
            _index(others, factor_shape, places),
            None
            if before.endswith(prefixes[1])
            else tuple(before.index(c) - len(before) for c in prefixes[1]),
        )
    return None


def _pairs(
    node: ir.Node, a: str, b: str
) -> Iterator[tuple[tuple[ir.Value, str], tuple[ir.Value, str]]]:
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    yield (second, b), (first, a)
    yield (first, a), (second, b)


def _terms(facts: Facts, node: ir.Node) -> tuple[list[str], str] | None:
    """The axes of both operands and of the result by letter."""
    dims = [facts.dims(v) for v in node.inputs]
    if len(dims) != 2 or any(d is None for d in dims):
        return None
    ranks = [len(d or ()) for d in dims]
    if node.op_type == "Einsum":
        return einsum_terms(node, ranks)
    if min(ranks) < 2 or max(ranks) > 20:
        return None
    batch = string.ascii_uppercase[: max(ranks) - 2]
    return [
        batch[len(batch) - ranks[0] + 2 :] + "ij",
        batch[len(batch) - ranks[1] + 2 :] + "jk",
    ], batch + "ik"


def _suffix(term: str, lanes: str) -> str:
    count = 0
    while count < len(term) and term[-1 - count] in lanes:
        count += 1
    return term[len(term) - count :]


def _index(term: str, shape: Shape, places: dict[str, np.ndarray]) -> Index:
    """The places of each axis, 0 along axes that are spread."""
    return tuple(
        np.zeros_like(places[c]) if size == 1 else places[c]
        for c, size in zip(term, shape, strict=True)
    )
