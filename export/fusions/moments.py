"""Means of squares, however they are reduced; and the scalar functions that a graph applies to them.

ReduceMean(x * x), ReduceSum(x^2) / n, ReduceSumSquare, ReduceL2, Einsum("...d,...d->..."), row times column
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import onnx_ir as ir

from ..algebra.einsum import einsum_terms
from ..algebra.facts import Facts
from ..algebra.products import factors
from ..algebra.symbols import Dims, product

HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Form:
    """scale * inner ^ power, where inner is the statistic itself, or another form plus or at least `bound`."""

    scale: float = 1.0
    power: Fraction = Fraction(1)
    kind: Literal["statistic", "plus", "floor", "log"] = "statistic"
    inner: "Form | None" = None
    bound: float = 0.0

    def times(self, number: float) -> "Form":
        return replace(self, scale=self.scale * number)

    def raised(self, power: Fraction) -> "Form | None":
        if self.scale <= 0:
            return None
        return replace(self, scale=self.scale ** float(power), power=self.power * power)

    def plus(self, number: float) -> "Form":
        if self.kind == "plus" and self.power == 1:
            return replace(self, bound=self.bound + number / self.scale)
        return Form(kind="plus", inner=self, bound=number)

    def floor(self, number: float) -> "Form":
        return Form(kind="floor", inner=self, bound=number)


@dataclass(frozen=True, slots=True)
class Moment:
    """A reduction: what is squared (or the wrong thing that is not), over which axes, and by which node."""

    node: ir.Node
    base: ir.Value
    axes: tuple[int, ...]
    start: Form
    fault: str = ""  # why it is no mean of squares


def moments(facts: Facts) -> Iterator[Moment]:
    """Every reduction of floats that could be a mean of squares."""
    for node in facts.nodes:
        if not node.domain and node.op_type in ("Einsum", "MatMul") and len(node.inputs) == 2:
            yield from _inner_product(facts, node)
            yield from _average_product(facts, node)
        if node.domain or node.op_type not in (
            "ReduceMean",
            "ReduceSum",
            "ReduceSumSquare",
            "ReduceL2",
        ):
            continue
        argument, axes = node.inputs[0], facts.axes(node)
        dims = facts.dims(argument)
        if (
            argument is None
            or not axes
            or dims is None
            or facts.dtype(argument) is None
            or facts.constant(argument)
        ):
            continue
        yield _moment(facts, node, argument, tuple(sorted(axes)), dims)


def _inner_product(facts: Facts, node: ir.Node) -> Iterator[Moment]:
    """x . x along the last axis, as Einsum("...d,...d->...") or as a row times a column."""
    first, second = node.inputs[0], node.inputs[1]
    if first is None or second is None or facts.constant(first):
        return
    axis: int | None = None
    if node.op_type == "Einsum":
        ranks = [len(d) if (d := facts.dims(v)) is not None else None for v in (first, second)]
        terms = einsum_terms(node, ranks)
        if terms is not None and terms[0][0] == terms[0][1] and terms[0][0][:-1] == terms[1]:
            axis = len(terms[1])
    else:
        row, column = facts.dims(first), facts.dims(second)
        if (
            row
            and column
            and len(row) > 2
            and row[-2] == 1
            and column[-1] == 1
            and row[-1] == column[-2]
        ):
            first, second = (_below_views(facts, v) for v in (first, second))
            axis = len(row) - 2
    dims = facts.dims(first)
    if (
        axis is None
        or dims is None
        or len(dims) != axis + 1
        or facts.key(first) != facts.key(second)
    ):
        return
    count = dims[axis]
    if isinstance(count, int):
        yield Moment(node, first, (axis,), Form().times(float(count)))


def _average_product(facts: Facts, node: ir.Node) -> Iterator[Moment]:
    """x^2 times a matrix of one number: a mean, or a sum, along the last axis."""
    first, second = node.inputs[0], node.inputs[1]
    if node.op_type != "MatMul" or first is None or second is None or not facts.constant(second):
        return
    dims, matrix = facts.dims(first), facts.dims(second)
    if dims is None or not matrix or len(matrix) != 2 or matrix[1] not in (1, dims[-1]):
        return
    base, fault = squared(facts, first)
    count = dims[-1]
    array = facts.array(second) if not fault and isinstance(count, int) else None
    if array is not None and array.size and (array == array.flat[0]).all():
        scale = float(array.flat[0]) * int(count)  # type: ignore[arg-type]
        if scale > 0:
            yield Moment(node, base, (len(dims) - 1,), Form().times(scale))


def _below_views(facts: Facts, value: ir.Value) -> ir.Value:
    """Below one Unsqueeze or Reshape."""
    node = facts.peel(value).producer()
    if node is not None and node.op_type in ("Unsqueeze", "Reshape") and node.inputs[0] is not None:
        return node.inputs[0]
    return value


def _moment(
    facts: Facts, node: ir.Node, argument: ir.Value, axes: tuple[int, ...], dims: Dims
) -> Moment:
    count = product(dims[a] for a in axes)
    start = Form()
    if node.op_type != "ReduceMean":
        if not isinstance(count, int):
            return Moment(node, argument, axes, start, "a sum over an axis of unknown size")
        start = start.times(float(count))
    if node.op_type == "ReduceL2":
        start = replace(start, scale=float(count) ** 0.5, power=HALF)  # type: ignore[arg-type]
    if node.op_type in ("ReduceL2", "ReduceSumSquare"):
        return Moment(node, _magnitude(facts, argument), axes, start)
    base, fault = squared(facts, argument)
    return Moment(node, base, axes, start, fault)


def _magnitude(facts: Facts, value: ir.Value) -> ir.Value:
    """`value`, or below its Abs and casts: the sign is lost in a square."""
    below = facts.peel(value)
    node = below.producer()
    if (
        node is not None
        and node.op_type == "Abs"
        and node.domain == ""
        and node.inputs[0] is not None
    ):
        return _magnitude(facts, node.inputs[0])
    return value


def squared(facts: Facts, value: ir.Value) -> tuple[ir.Value, str]:
    """What `value` is the square of, and what is wrong where it is none."""
    node = facts.peel(value).producer()
    if node is None or node.domain or node.op_type not in ("Mul", "Pow"):
        return value, "the mean is not of squares"
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    if node.op_type == "Pow":
        exponent = facts.scalar(second)
        fault = (
            ""
            if exponent == 2.0
            else f"the mean is of the power {exponent:g}"
            if exponent is not None
            else "the exponent varies"
        )
        return _magnitude(facts, first), fault
    if facts.key(_magnitude(facts, first)) == facts.key(_magnitude(facts, second)):
        return _magnitude(facts, first), ""
    powers = set(factors(facts, value).powers.values())
    other = (
        f"the mean is of the power {powers.pop()}"
        if len(powers) == 1 and len(factors(facts, value).powers) == 1
        else "the mean is of a product of two tensors"
    )
    return value, other
