"""Elementwise arithmetic, with numpy's broadcasting (ONNX: Multidirectional Broadcasting)."""

import functools
from collections.abc import Callable

import numpy as np
import torch

from .registry import Call, Tensor, math, move

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,  # ties to even, as ONNX says
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
}


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[Call, Tensor], Tensor]:
    return lambda call, x: function(x)


def _binary(
    function: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Call, Tensor, Tensor], Tensor]:
    return lambda call, a, b: function(*_aligned(call, a, b))


for _name, _function in _UNARY.items():
    math(_name)(_unary(_function))
for _name, _pair in _BINARY.items():
    math(_name)(_binary(_pair))


def _aligned(call: Call, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Before opset 7, broadcast=1 lays b's axes over a's from `axis` on."""
    if call.version >= 7 or not call.get_int("broadcast", 0):
        return a, b
    axis = call.get_int("axis", a.ndim - b.ndim)
    return a, b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


@math("Div")
def div(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """True division for floats; for integers the quotient towards zero."""
    a, b = _aligned(call, a, b)
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


@math("Mod")
def mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """fmod=0: the sign of the divisor (Python's %); fmod=1: the sign of the dividend (C's fmod)."""
    return torch.fmod(a, b) if call.get_int("fmod", 0) else torch.remainder(a, b)


@math("Pow")
def power(call: Call, base: Tensor, exponent: Tensor) -> Tensor:
    """The result has the base's type, also where the exponent has another one."""
    if base.is_floating_point() and exponent.numel() == 1:
        # The square of a square root and the like: torch has exact ways for small constants.
        return torch.pow(base, exponent.item()).expand(
            np.broadcast_shapes(tuple(base.shape), tuple(exponent.shape))
        )
    if not base.is_floating_point() and exponent.is_floating_point():
        return torch.pow(base.double(), exponent.double())
    if not base.is_floating_point() and bool((exponent < 0).any()):
        return torch.pow(base.double(), exponent.double())
    return torch.pow(base, exponent.to(base.dtype))


@math("Max", "Min")
def extremum(call: Call, *inputs: Tensor) -> Tensor:
    """The elementwise largest or smallest of all inputs; NaN wins."""
    return functools.reduce(torch.maximum if call.op_type == "Max" else torch.minimum, inputs)


@math("Sum", "Mean")
def total(call: Call, *inputs: Tensor) -> Tensor:
    """The elementwise sum or mean of all inputs, in one rounding."""
    result = functools.reduce(torch.add, inputs)
    return result / len(inputs) if call.op_type == "Mean" else result


@math("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Bounds are attributes before opset 11; where low > high, high wins."""
    if call.version < 11:
        return x.clamp(call.get_float("min", -torch.inf), call.get_float("max", torch.inf))
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


@math("BitShift")
def bit_shift(call: Call, x: Tensor, amount: Tensor) -> Tensor:
    """A logical shift of unsigned numbers."""
    if call.get_str("direction", "") == "LEFT":
        return torch.bitwise_left_shift(x, amount)
    return torch.bitwise_right_shift(x, amount)


@math("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Bit by bit, on integers."""
    functions = {"And": torch.bitwise_and, "Or": torch.bitwise_or, "Xor": torch.bitwise_xor}
    return functions[call.op_type.removeprefix("Bitwise")](a, b)


@math("BitwiseNot")
def bitwise_not(call: Call, x: Tensor) -> Tensor:
    """Every bit turned."""
    return torch.bitwise_not(x)


@math("And", "Or", "Xor")
def logical(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """And, or, exclusive or of booleans."""
    a, b = _aligned(call, a, b)
    functions = {"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor}
    return functions[call.op_type](a, b)


@math("Not")
def logical_not(call: Call, x: Tensor) -> Tensor:
    """The opposite of each boolean."""
    return torch.logical_not(x)


@math("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def compare(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """A boolean per element; NaN compares unequal."""
    a, b = _aligned(call, a, b)
    functions = {
        "Equal": torch.eq,
        "Greater": torch.gt,
        "GreaterOrEqual": torch.ge,
        "Less": torch.lt,
        "LessOrEqual": torch.le,
    }
    return functions[call.op_type](a, b)


@math("IsNaN")
def is_nan(call: Call, x: Tensor) -> Tensor:
    """Where x is NaN."""
    return torch.isnan(x)


@math("IsInf")
def is_inf(call: Call, x: Tensor) -> Tensor:
    """Where x is infinite, of the signs that are asked for."""
    positive = torch.isposinf(x) & bool(call.get_int("detect_positive", 1))
    return positive | (torch.isneginf(x) & bool(call.get_int("detect_negative", 1)))


@move("Where")
def where(call: Call, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, b elsewhere."""
    return torch.where(condition, a, b)
