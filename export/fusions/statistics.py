"""From a mean of squares forward: what the graph does to it, as scale * (...)^power, until a tensor is multiplied by it.

ReduceMean(x * x) -> Add(eps) -> Sqrt -> Reciprocal   is   1 * (mean + eps)^(-1/2)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from ..algebra.symbols import product
from .moments import HALF, Form, Moment, squared

PASSIVE = TRANSPARENT | {"Reshape", "Unsqueeze", "Squeeze", "Expand"}


@dataclass(frozen=True, slots=True)
class Join:
    """Where the statistic meets a tensor: output = other * form, as a Mul or Div."""

    moment: Moment
    node: ir.Node
    other: ir.Value
    statistic: ir.Value
    form: Form
    centred_by: ir.Value | None  # mean whose square was subtracted: the statistic is a variance
    fault: str
    roots: tuple[ir.Value, ...]  # the root and its reciprocal, which something else may read
    weight: ir.Value | None = None  # multiplied into the statistic before the tensor was


def joins(facts: Facts, moment: Moment) -> Iterator[Join]:
    """Follow one statistic forward to every tensor that is multiplied or divided by it."""
    start = moment.node.outputs[0]
    stack: list[_State] = [_State(moment, start, moment.start, None, moment.fault, None)]
    roots: list[ir.Value] = []
    steps = 0
    while stack and steps < 64:
        state = stack.pop()
        steps += 1
        if (
            state.form.power in (-HALF, HALF)
            and state.form.kind != "floor"
            and state.weight is None
        ):
            roots.append(state.value)
        for node in facts.users(state.value):
            if node.domain:
                continue
            raw = _with_mean(facts, node, state)
            if raw is not None:
                stack.append(_State(raw, node.outputs[0], Form(), None, raw.fault, None))
                continue
            step = _step(facts, state.moment, node, state)
            if step is not None:
                stack.append(_State(state.moment, node.outputs[0], *step, state.weight))
                continue
            joined = _joined(facts, node, state.value, state.form)
            if joined is None:
                continue
            other, multiplier = joined
            if state.weight is None and facts.constant(other) and facts.scalar(other) is None:
                new = _State(
                    state.moment, node.outputs[0], multiplier, state.mean, state.fault, other
                )
                stack.append(new)
            else:
                yield Join(
                    state.moment,
                    node,
                    other,
                    state.value,
                    multiplier,
                    state.mean,
                    state.fault,
                    tuple(roots),
                    state.weight,
                )


@dataclass(frozen=True, slots=True)
class _State:
    moment: Moment
    value: ir.Value
    form: Form
    mean: ir.Value | None
    fault: str
    weight: ir.Value | None


def _with_mean(facts: Facts, node: ir.Node, state: _State) -> Moment | None:
    """The mean of squares of x, when `node` adds the square of x's mean to x's variance."""
    if node.op_type not in ("Add", "Sum") or len(node.inputs) != 2 or state.form != Form():
        return None
    x = centre_of(facts, state.moment)
    other = node.inputs[1 if node.inputs[0] is state.value else 0]
    if x is None or other is None or state.weight is not None or state.mean is not None:
        return None
    whole = replace(state.moment, base=x)
    return whole if _mean_of_square(facts, whole, other) is not None else None


def _step(
    facts: Facts, moment: Moment, node: ir.Node, state: _State
) -> tuple[Form, ir.Value | None, str] | None:
    """The next form when `node` only rescales, shifts, bounds or roots the statistic; None otherwise."""
    value, form, mean, fault = state.value, state.form, state.mean, state.fault
    if state.weight is not None and node.op_type not in (*PASSIVE, "Mul"):
        return None
    op, first = node.op_type, node.inputs[0] is value
    other = node.inputs[1 if first else 0] if len(node.inputs) == 2 else None
    if op in PASSIVE and first:
        return form, mean, fault
    if op in ("Sqrt", "Reciprocal"):
        raised = form.raised(HALF if op == "Sqrt" else Fraction(-1))
        return None if raised is None else (raised, mean, fault)
    if op == "Relu":
        return form.floor(0.0), mean, fault
    if op == "Mul" and node.inputs[0] is value is node.inputs[1]:
        squared_form = form.raised(Fraction(2))
        return None if squared_form is None else (squared_form, mean, fault)
    if op == "Log":
        return Form(kind="log", inner=form), mean, fault
    if op == "Exp" and form.kind == "log" and form.inner is not None and form.power == 1:
        raised = form.inner.raised(_fraction(form.scale))
        return None if raised is None else (raised, mean, fault)
    if op == "Clip" and first:
        low, high = ([facts.scalar(v) for v in node.inputs[1:3]] + [None, None])[:2]
        return (
            (form.floor(low), mean, fault)
            if low is not None and (high is None or high > 1e30)
            else None
        )
    number = facts.scalar(other)
    if op == "Sub" and first and other is not None and number is None:
        square = _mean_of_square(facts, moment, other)
        return (form, square, fault) if square is not None and form == Form() else None
    if (
        op in ("Add", "Sum", "Max")
        and other is not None
        and number is None
        and facts.constant(other)
    ):
        bound = form.plus(0.0) if op != "Max" else form.floor(0.0)
        return bound, mean, fault or f"the epsilon {other.name} is a tensor, not one number"
    if number is None:
        return None
    if op == "Mul":
        return form.times(number), mean, fault
    if op == "Div":
        if first:
            return (form.times(1 / number), mean, fault) if number else None
        inverse = form.raised(Fraction(-1))
        return None if inverse is None else (inverse.times(number), mean, fault)
    if op == "Pow" and first:
        raised = form.raised(_fraction(number))
        return None if raised is None else (raised, mean, fault)
    if op in ("Add", "Sum"):
        return form.plus(number), mean, fault
    if op == "Sub" and first:
        return form.plus(-number), mean, fault
    if op == "Max":
        idle = number <= 0 and form.scale > 0 and form.kind != "log" and form.bound >= 0
        return (form if idle else form.floor(number)), mean, fault
    return None


def _fraction(number: float) -> Fraction:
    """A number as a small fraction where it is one to float32's precision, else nearly as it is."""
    found = Fraction(number).limit_denominator(8)
    return found if abs(float(found) - number) < 1e-6 else Fraction(number).limit_denominator(10**4)


def _mean_of_square(facts: Facts, moment: Moment, value: ir.Value) -> ir.Value | None:
    """The mean m when `value` is m * m and m is the mean of the same tensor over the same axes."""
    base, fault = squared(facts, value)
    if fault:
        return None
    return base if is_mean(facts, base, moment.base, moment.axes) else None


def centre_of(facts: Facts, moment: Moment) -> ir.Value | None:
    """x when the squares are of x - mean(x)."""
    return centre_below(facts, moment.base, moment.axes)


def centre_below(facts: Facts, value: ir.Value, axes: tuple[int, ...]) -> ir.Value | None:
    """x when `value` is x - mean(x) over `axes`."""
    node = facts.peel(value).producer()
    if node is None or node.domain or node.op_type != "Sub":
        return None
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    return first if is_mean(facts, second, first, axes) else None


def is_mean(facts: Facts, value: ir.Value, tensor: ir.Value, axes: tuple[int, ...]) -> bool:
    """Whether `value` is the mean of `tensor` over `axes` (ReduceMean, or ReduceSum over the count)."""
    node, scale = facts.peel(value).producer(), 1.0
    while node is not None and node.domain == "":
        if node.op_type in PASSIVE - TRANSPARENT:
            node = facts.peel(node.inputs[0]).producer() if node.inputs[0] is not None else None
            continue
        if node.op_type in ("Mul", "Div"):
            numbers = [facts.scalar(v) for v in node.inputs]
            if node.op_type == "Div" and numbers[1]:
                scale, below = scale / numbers[1], node.inputs[0]
            elif node.op_type == "Mul" and (numbers[0] is None) != (numbers[1] is None):
                scale *= next(n for n in numbers if n is not None)
                below = node.inputs[numbers.index(None)]
            else:
                return False
            node = facts.peel(below).producer() if below is not None else None
            continue
        break
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum") or node.inputs[0] is None:
        return False
    found = facts.axes(node)
    dims = facts.dims(node.inputs[0])
    if found is None or tuple(sorted(found)) != axes or dims is None:
        return False
    count = product(dims[a] for a in axes) if node.op_type == "ReduceSum" else 1
    if not isinstance(count, int) or abs(scale * count - 1) > 1e-5:
        return False
    return facts.key(node.inputs[0]) == facts.key(tensor)


def _joined(
    facts: Facts, node: ir.Node, value: ir.Value, form: Form
) -> tuple[ir.Value, Form] | None:
    if node.op_type not in ("Mul", "Div"):
        return None
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    if node.op_type == "Div":
        if second is not value or first is value:
            return None
        inverse = form.raised(Fraction(-1))
        return None if inverse is None else (first, inverse)
    other = second if first is value else first
    return None if other is value else (other, form)
