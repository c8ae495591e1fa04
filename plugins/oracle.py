"""Float64 arithmetic for the references: nothing here is shared with kernels or bodies.

E4M3 codes come from a table of all values, searched in float64: the nearest, ties to the even code.
"""

import math
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # numpy arrays of any type; results are float64 unless said otherwise

E4M3_MAX = 448.0
_CODES = np.arange(0x7F, dtype=np.uint8)  # 0 .. 448; 0x7F is NaN
_VALUES = np.array(
    [
        (code & 7) * 2.0**-9 if code < 8 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7)
        for code in range(0x7F)
    ]
)
E4M3_BOUNDARIES = (_VALUES[:-1] + _VALUES[1:]) / 2  # where the code changes; on it, to even


def wide(array: Array) -> Array:
    """The array in float64."""
    return np.asarray(array).astype(np.float64)


def quantise(value: Array, scale: Array) -> Array:
    """E4M3 codes (uint8) of value / scale: saturating, nearest even, NaN to 0x7F."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = wide(value) / wide(scale)
    size = np.minimum(np.abs(ratio), E4M3_MAX)
    upper = np.searchsorted(E4M3_BOUNDARIES, size, side="left")
    tie = (upper < len(E4M3_BOUNDARIES)) & (
        E4M3_BOUNDARIES[np.minimum(upper, len(E4M3_BOUNDARIES) - 1)] == size
    )
    code = np.where(tie & (upper % 2 == 1), upper + 1, upper).astype(np.uint8)
    code |= (np.signbit(ratio).astype(np.uint8)) << 7
    return np.where(np.isnan(ratio), np.uint8(0x7F), code)


def rms_normalise(total: Array, epsilon: float, epsilon_outside: float) -> Array:
    """total / (sqrt(mean(total ** 2) + epsilon) + epsilon_outside), over the last axis (arXiv 1910.07467)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        square = np.mean(total**2, axis=-1, keepdims=True)
        return total / (np.sqrt(square + epsilon) + epsilon_outside)


def layer_normalise(total: Array, epsilon: float, epsilon_outside: float) -> Array:
    """The same after subtracting the mean (arXiv 1607.06450)."""
    with np.errstate(invalid="ignore"):
        centred = total - np.mean(total, axis=-1, keepdims=True)
    return rms_normalise(centred, epsilon, epsilon_outside)


def swish(x: Array) -> Array:
    """x / (1 + exp(-x)); for x below -709 the exponential is infinite and the result the right -0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x / (1 + np.exp(-x))


def gelu(x: Array, approximate: str) -> Array:
    """x * Phi(x), or its tanh form (arXiv 1606.08415); the tail by erfc, which does not cancel."""
    with np.errstate(over="ignore", invalid="ignore"):
        if approximate == "tanh":
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
            return x / (1 + np.exp(-2 * inner))
        tail = np.array([math.erfc(v) for v in (-x / np.sqrt(2)).ravel()])
        return x * 0.5 * tail.reshape(x.shape)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the pairs (i, i + D/2) of [B, S, heads, D] by angles [B, S, D/2] (arXiv 2104.09864)."""
    low, high = np.split(x, 2, axis=-1)
    c, s = wide(cos)[:, :, None], wide(sin)[:, :, None]
    return np.concatenate([low * c - high * s, high * c + low * s], axis=-1)
