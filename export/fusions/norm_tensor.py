"""Which tensor a statistic normalises: proof that what it multiplies is what it was taken of.

x * r;  (x - mean) * r;  w * x * r;  x * r - mean * r;  all of x by the statistic of its first elements
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.keys import slice_bounds
from ..algebra.products import factors
from ..algebra.symbols import Dims
from .moments import Moment
from .statistics import Join, centre_below, centre_of, is_mean


@dataclass(frozen=True, slots=True)
class Normalised:
    """What a statistic normalises: x, the weight and factor that came first, and where the product stands."""

    x: ir.Value
    centred: bool
    weight: ir.Value | None
    scale: float = 1.0
    output: ir.Value | None = None  # where it is not the join's own: x * r - mean * r
    dims: Dims | None = None  # where the statistic is of a part of x


def normalised_tensor(facts: Facts, join: Join) -> Normalised | str:
    """The tensor of `join`, proven to be the one whose statistics these are; a reason otherwise."""
    moment = join.moment
    key = facts.key(moment.base)
    centre = centre_of(facts, moment)
    candidates = _candidates(facts, join.other, moment, centre, key)
    for at, x, centred, output in candidates:
        found = factors(facts, join.other, frozenset({at}))
        if found.powers.get(at) != 1:
            continue
        rest = [v for k, v in found.values.items() if k != at and k in found.powers]
        if any(found.powers[facts.key(v)] != 1 for v in rest) or len(rest) > 1:
            return f"{join.other.name} holds more than the tensor and one weight"
        if rest and join.weight is not None:
            return "two weights are multiplied in"
        dims = facts.dims(x)
        part = at != key and not centred and join.centred_by is None
        value = x if centred else _operand(facts, join.other, at)
        return Normalised(
            value,
            centred,
            rest[0] if rest else join.weight,
            found.coefficient,
            output,
            dims if part else None,
        )
    if join.centred_by is not None:
        return "the variance is not of the tensor that is centred"
    return f"the statistics are of {moment.base.name}, the product is with {join.other.name}"


def _candidates(
    facts: Facts, other: ir.Value, moment: Moment, centre: ir.Value | None, key: int
) -> Iterator[tuple[int, ir.Value, bool, ir.Value | None]]:
    """(key of the factor, x, whether it is centred, where the product stands) of every tensor that would be right."""
    if centre is not None:
        yield key, centre, True, None
        if (folded := _folded(facts, other, moment, centre)) is not None:
            yield facts.key(centre), centre, True, folded
    for value in factors(facts, other).values.values():
        x = centre_below(facts, value, moment.axes)
        if x is not None and facts.key(x) == key:
            yield facts.key(value), x, True, None
    if centre is None:
        yield key, moment.base, False, None
        if (whole := _whole(facts, moment)) is not None:
            yield facts.key(whole), whole, False, None


def _folded(facts: Facts, other: ir.Value, moment: Moment, centre: ir.Value) -> ir.Value | None:
    """x * r - mean * r, which is (x - mean) * r, when `other` is x."""
    if facts.key(other) != facts.key(centre):
        return None
    for product in facts.users(other):
        for node in (
            facts.users(product.outputs[0])
            if product.op_type in ("Mul", "Div") and not product.domain
            else ()
        ):
            if (
                node.op_type != "Sub"
                or node.inputs[0] is not product.outputs[0]
                or node.inputs[1] is None
            ):
                continue
            one, two = factors(facts, node.inputs[0]), factors(facts, node.inputs[1])
            one.times(two, Fraction(-1))
            means = [v for k, v in one.values.items() if one.powers.get(k) == -1]
            pure = (
                one.coefficient == 1
                and len(one.powers) == 2
                and one.powers.get(facts.key(centre)) == 1
            )
            if pure and len(means) == 1 and is_mean(facts, means[0], centre, moment.axes):
                return node.outputs[0]
    return None


def _whole(facts: Facts, moment: Moment) -> ir.Value | None:
    """x when the squares are of its first elements along the axis of the mean (partial RMSNorm)."""
    node = facts.peel(moment.base).producer()
    if node is None or node.domain or len(moment.axes) != 1 or node.inputs[0] is None:
        return None
    axis, whole = moment.axes[0], node.inputs[0]
    if node.op_type == "Slice":
        return whole if slice_bounds(facts, node) == [(axis, 0, 1)] else None
    dims = facts.dims(whole)
    if node.op_type == "Split" and dims is not None and node.outputs[0] is facts.peel(moment.base):
        return whole if node.attributes.get_int("axis", 0) % len(dims) == axis else None
    return None


def _operand(facts: Facts, value: ir.Value, key: int) -> ir.Value:
    """The value with `key` that the product reads, in the type it reads it."""
    while facts.key(value) != key:
        node = value.producer()
        assert node is not None
        value = next(
            v
            for v in node.inputs
            if v is not None
            and facts.scalar(v) is None
            and key in {facts.key(v), *factors(facts, v, frozenset({key})).powers}
        )
    return value
