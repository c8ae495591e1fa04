"""A value as a product of powers, or as a polynomial in one other value: the algebra in which spellings agree.

w * x / sqrt(m)          -> 1 * w^1 * x^1 * m^(-1/2)
c * (x + k * x * x * x)  -> {1: c, 3: c * k} in x
"""

from dataclasses import dataclass, field
from fractions import Fraction

import onnx_ir as ir

from .facts import Facts

DEPTH = 12  # nodes deep; no spelling of one operator needs more
Powers = dict[int, float]


@dataclass(slots=True)
class Factors:
    """coefficient * product of value ** power, the values keyed by their meaning."""

    coefficient: float = 1.0
    powers: dict[int, Fraction] = field(default_factory=dict)
    values: dict[int, ir.Value] = field(default_factory=dict)

    def times(self, other: "Factors", power: Fraction) -> None:
        """Multiply by other ** power."""
        self.coefficient *= other.coefficient ** float(power)
        for key, exponent in other.powers.items():
            self.powers[key] = self.powers.get(key, Fraction(0)) + exponent * power
            self.values.setdefault(key, other.values[key])
            if not self.powers[key]:
                del self.powers[key]


def factors(
    facts: Facts, value: ir.Value, stops: frozenset[int] = frozenset(), depth: int = DEPTH
) -> Factors:
    """`value` as a product; values whose key is in `stops` are not taken apart."""
    value = facts.peel(value)
    number = facts.scalar(value)
    if number is not None:
        return Factors(number)
    key, node = facts.key(value), value.producer()
    atom = Factors(1.0, {key: Fraction(1)}, {key: value})
    if key in stops or node is None or node.domain or depth == 0:
        return atom
    one, half = Fraction(1), Fraction(1, 2)
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type in ("Mul", "Div"):
        result = factors(facts, inputs[0], stops, depth - 1)
        other = factors(facts, inputs[1], stops, depth - 1)
        if node.op_type == "Div" and not other.coefficient:
            return atom
        result.times(other, one if node.op_type == "Mul" else -one)
        return result
    if node.op_type == "Neg":
        result = factors(facts, inputs[0], stops, depth - 1)
        result.coefficient *= -1
        return result
    power = {"Reciprocal": -one, "Sqrt": half}.get(node.op_type)
    if node.op_type == "Pow" and (exponent := facts.scalar(inputs[1])) is not None:
        power = Fraction(exponent).limit_denominator(8)
    if power is None:
        return atom
    below = factors(facts, inputs[0], stops, depth - 1)
    if power.denominator != 1 and (len(below.powers) != 1 or below.coefficient <= 0):
        return atom  # the root of a product need not be the product of the roots
    if not below.coefficient:
        return atom
    result = Factors()
    result.times(below, power)
    return result


def polynomial(facts: Facts, value: ir.Value, atom: int, depth: int = DEPTH) -> Powers | None:
    """`value` as a polynomial in the value with key `atom`: {power: coefficient}; None where it is not one."""
    value = facts.peel(value)
    if facts.key(value) == atom:
        return {1: 1.0}
    number = facts.scalar(value)
    if number is not None:
        return {0: number}
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    inputs = [v for v in node.inputs if v is not None]
    first = polynomial(facts, inputs[0], atom, depth - 1) if inputs else None
    if first is None:
        return None
    if node.op_type == "Neg":
        return {p: -c for p, c in first.items()}
    if node.op_type not in ("Add", "Sum", "Sub", "Mul", "Div", "Pow") or len(inputs) != 2:
        return None
    second = polynomial(facts, inputs[1], atom, depth - 1)
    if second is None:
        return None
    return _combined(node.op_type, first, second)


def _combined(op: str, first: Powers, second: Powers) -> Powers | None:
    constant = second.get(0, 0.0) if set(second) <= {0} else None
    if op in ("Add", "Sum", "Sub"):
        sign = -1.0 if op == "Sub" else 1.0
        return {p: first.get(p, 0.0) + sign * second.get(p, 0.0) for p in {*first, *second}}
    if op == "Mul":
        result: Powers = {}
        for p, c in first.items():
            for q, d in second.items():
                result[p + q] = result.get(p + q, 0.0) + c * d
        return result
    if constant is None or (op == "Div" and not constant):
        return None
    if op == "Div":
        return {p: c / constant for p, c in first.items()}
    if constant != int(constant) or not 0 < constant <= 4 or len(first) != 1:
        return None
    ((p, c),) = first.items()
    return {p * int(constant): c ** int(constant)}


def close(a: float, b: float, dtype: ir.DataType | None) -> bool:
    """Whether two constants are the same number, stored in `dtype` and folded once or twice."""
    limit = {ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 1.6e-2}.get(
        dtype or ir.DataType.FLOAT, 1e-6
    )
    return abs(a - b) <= limit * max(abs(a), abs(b))
