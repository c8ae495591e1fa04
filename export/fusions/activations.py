"""SiLU, quick-GELU and GELU in any spelling: x * (a * f(p(x)) + b), with f sigmoid, tanh or erf and p a polynomial.

x * sigmoid(x)                                             SiLU
x * sigmoid(1.702 * x)                                     quick-GELU
0.5 * x * (1 + erf(x / sqrt(2)))                           GELU
0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))    GELU, tanh form (the same as x * sigmoid of twice the inside)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from ..algebra.products import close, factors, polynomial

INSIDE = math.sqrt(2 / math.pi)
CUBE = 0.044715
QUICK = 1.702


@dataclass(frozen=True, slots=True)
class Activation:
    """One found activation: root = kind(x) * rest, rest None where the product is of nothing else."""

    kind: str  # silu, gelu, gelu_tanh, relu, sigmoid
    alpha: float  # of silu: x * sigmoid(alpha * x)
    x: ir.Value
    root: ir.Value
    rest: ir.Value | None = None
    approximate: bool = False  # the constants are those of the kind only to the type's precision


@dataclass(frozen=True, slots=True)
class _Affine:
    """scale * f + shift, or its reciprocal, of a nonlinear function f."""

    value: ir.Value
    scale: float
    shift: float
    inverse: bool = False
    rest: ir.Value | None = None  # a tensor that multiplies all of it


def find_activations(facts: Facts) -> Iterator[Activation]:
    """Every activation of the graph, in the order of their nonlinear functions."""
    for node in facts.nodes:
        if node.domain or not node.outputs or not node.inputs or node.inputs[0] is None:
            continue
        argument, value = node.inputs[0], node.outputs[0]
        if node.op_type in ("Sigmoid", "Tanh", "Erf", "Exp", "HardSwish"):
            found = _spelled(facts, node.op_type, argument, value)
            yield from found
            if node.op_type == "Sigmoid" and not found:
                yield Activation("sigmoid", 1.0, argument, value)
        elif node.op_type == "Relu" or (node.op_type == "Max" and _zero_max(facts, node)):
            x = (
                next(v for v in node.inputs if v is not None and facts.scalar(v) is None)
                if node.op_type == "Max"
                else argument
            )
            yield Activation("relu", 1.0, x, value)
        elif (
            node.op_type == "Clip"
            and facts.scalar(node.inputs[1] if len(node.inputs) > 1 else None) == 0.0
        ):
            if len(node.inputs) < 3 or node.inputs[2] is None:
                yield Activation("relu", 1.0, argument, value)
        elif node.op_type == "Swish":
            yield Activation("silu", node.attributes.get_float("alpha", 1.0), argument, value)
        elif node.op_type == "Gelu":
            tanh = node.attributes.get_string("approximate", "none") == "tanh"
            yield Activation("gelu_tanh" if tanh else "gelu", 1.0, argument, value)


def _zero_max(facts: Facts, node: ir.Node) -> bool:
    return len(node.inputs) == 2 and [facts.scalar(v) for v in node.inputs].count(0.0) == 1


def _spelled(facts: Facts, function: str, argument: ir.Value, start: ir.Value) -> list[Activation]:
    """Follow f forward through scales and shifts to the products that hold its argument."""
    stack, found, steps = [_Affine(start, 1.0, 0.0)], [], 0
    while stack and steps < 16:
        state = stack.pop()
        steps += 1
        for node in facts.users(state.value):
            step = _step(facts, node, state)
            if step is not None:
                stack.append(step)
                continue
            activation = _product(facts, function, argument, node, state)
            if activation is not None:
                found.append(activation)
            elif (times := _times_tensor(facts, node, state)) is not None:
                stack.append(times)
    return found


def _times_tensor(facts: Facts, node: ir.Node, state: _Affine) -> _Affine | None:
    """The product with another tensor, which x may still follow: (up * sigmoid(x)) * x."""
    if node.domain or node.op_type != "Mul" or state.rest is not None or state.inverse:
        return None
    other = node.inputs[1 if node.inputs[0] is state.value else 0]
    if other is None or other is state.value or facts.constant(other):
        return None
    users = facts.users(node.outputs[0])
    if len(users) != 1 or node.outputs[0] in facts.outputs:
        return None
    return replace(state, value=node.outputs[0], rest=other)


def _step(facts: Facts, node: ir.Node, state: _Affine) -> _Affine | None:
    if node.domain:
        return None
    value, out = state.value, node.outputs[0]
    if node.op_type in TRANSPARENT:
        return None if facts.key(out) != facts.key(value) else replace(state, value=out)
    if state.rest is not None:
        return None
    if node.op_type == "Reciprocal":
        return _Affine(out, state.scale, state.shift, not state.inverse)
    if len(node.inputs) != 2:
        return None
    first = node.inputs[0] is value
    number = facts.scalar(node.inputs[1 if first else 0])
    if number is None or (state.inverse and node.op_type != "Mul"):
        return None
    if node.op_type in ("Add", "Sum"):
        return _Affine(out, state.scale, state.shift + number)
    if node.op_type == "Sub":
        sign = 1 if first else -1
        return _Affine(
            out,
            sign * state.scale,
            sign * (state.shift - number) if first else number - state.shift,
        )
    if node.op_type == "Mul" and number:
        factor = 1 / number if state.inverse else number
        return _Affine(out, state.scale * factor, state.shift * factor, state.inverse)
    if node.op_type == "Div" and number:
        if not first:
            return _Affine(out, state.scale / number, state.shift / number, True)
        return _Affine(out, state.scale / number, state.shift / number)
    return None


def _product(
    facts: Facts, function: str, argument: ir.Value, node: ir.Node, state: _Affine
) -> Activation | None:
    """The activation when `node` multiplies (or divides by) the affine form and the other factor holds x."""
    if node.domain or len(node.inputs) != 2 or node.op_type not in ("Mul", "Div"):
        return None
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    inverse = state.inverse
    if node.op_type == "Div":
        if second is not state.value:
            return None
        other, inverse = first, not inverse
    else:
        other = second if first is state.value else first
    if other is state.value or facts.constant(other):
        return None
    for x in _bases(facts, other):
        inside = polynomial(facts, argument, facts.key(x))
        if inside is None:
            continue
        outer = factors(facts, other, frozenset({facts.key(x)}))
        if outer.powers.get(facts.key(x)) != Fraction(1):
            continue
        rest = [v for k, v in outer.values.items() if k in outer.powers and k != facts.key(x)]
        if len(rest) > 1 or any(outer.powers[facts.key(v)] != 1 for v in rest):
            continue
        if rest and state.rest is not None:
            continue
        up = rest[0] if rest else state.rest
        for root, factor, found_up in _scaled(facts, node.outputs[0], up):
            kind = _named(
                facts,
                function,
                inside,
                state,
                inverse,
                outer.coefficient * factor,
                facts.dtype(node.inputs[0]),
            )
            if kind is not None:
                name, alpha, approximate = kind
                return Activation(name, alpha, x, root, found_up, approximate)
    return None


def _scaled(
    facts: Facts, value: ir.Value, up: ir.Value | None
) -> Iterator[tuple[ir.Value, float, ir.Value | None]]:
    """The product, and what it becomes while only constants, or one other tensor, multiply it: (value, factor, tensor)."""
    factor = 1.0
    yield value, factor, up
    for _ in range(4):
        users = facts.users(value)
        if len(users) != 1 or value in facts.outputs or users[0].domain:
            return
        node = users[0]
        if node.op_type not in TRANSPARENT:
            if node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
                return
            other = node.inputs[1 if node.inputs[0] is value else 0]
            number = facts.scalar(other)
            if (
                number is not None
                and number
                and not (node.op_type == "Div" and node.inputs[0] is not value)
            ):
                factor = factor * number if node.op_type == "Mul" else factor / number
            elif (
                node.op_type == "Mul"
                and up is None
                and other is not value
                and not facts.constant(other)
            ):
                up = other
            else:
                return
        value = node.outputs[0]
        yield value, factor, up


def _bases(facts: Facts, value: ir.Value) -> Iterator[ir.Value]:
    """The values that may be x: the operand itself, and what is left below scales and products."""
    yield facts.peel(value)
    node, depth = facts.peel(value).producer(), 0
    stack = [node]
    while stack and depth < 8:
        node = stack.pop()
        depth += 1
        if node is None or node.domain or node.op_type not in ("Mul", "Div", "Neg"):
            continue
        for v in node.inputs:
            if v is not None and facts.scalar(v) is None:
                yield facts.peel(v)
                stack.append(facts.peel(v).producer())


def _named(
    facts: Facts,
    function: str,
    inside: dict[int, float],
    state: _Affine,
    inverse: bool,
    outer: float,
    dtype: ir.DataType | None,
) -> tuple[str, float, bool] | None:
    """(kind, alpha, approximate) of outer * x * (scale * f(inside) + shift), or over it for an exponential."""
    terms = {p: c for p, c in inside.items() if c}
    scale, shift = (
        (state.scale, state.shift) if inverse else (state.scale * outer, state.shift * outer)
    )
    if function == "Exp":
        if (
            not inverse
            or not close(scale, outer, dtype)
            or not close(shift, outer, dtype)
            or any(p != 1 for p in terms if p != 3)
        ):
            return None
        terms, function, inverse = {p: -c for p, c in terms.items()}, "Sigmoid", False
        scale, shift = 1.0, 0.0
    if inverse:
        return None
    if terms.get(1, 0.0) < 0:  # tanh(-p) = -tanh(p), erf too; sigmoid(-p) = 1 - sigmoid(p)
        terms = {p: -c for p, c in terms.items()}
        scale, shift = -scale, shift + scale if function == "Sigmoid" else shift
    if function == "Tanh" and close(scale, 0.5, dtype) and close(shift, 0.5, dtype):
        terms, function, scale, shift = {p: 2 * c for p, c in terms.items()}, "Sigmoid", 1.0, 0.0
    if function == "Sigmoid" and close(scale, 1.0, dtype) and abs(shift) < 1e-6:
        if set(terms) == {1} and terms[1] > 0:
            return "silu", _neat(terms[1], dtype), False
        if (
            set(terms) == {1, 3}
            and close(terms[1], 2 * INSIDE, dtype)
            and close(terms[3], 2 * INSIDE * CUBE, dtype)
        ):
            exact = close(terms[1], 2 * INSIDE, None) and close(terms[3], 2 * INSIDE * CUBE, None)
            return "gelu_tanh", 1.0, not exact
    halves = function == "Erf" and close(scale, 0.5, dtype) and close(shift, 0.5, dtype)
    if halves and set(terms) == {1} and close(terms[1], math.sqrt(0.5), dtype):
        return "gelu", 1.0, not close(terms[1], math.sqrt(0.5), None)
    return None


def _neat(alpha: float, dtype: ir.DataType | None) -> float:
    """1 where alpha is 1 to the type's precision after folding; alpha otherwise."""
    return 1.0 if close(alpha, 1.0, dtype) else alpha
