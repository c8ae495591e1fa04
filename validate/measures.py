"""How the errors of one tensor are spread over its elements: quantiles, units in the last place, SNR, the worst.

    e = |a - t|     relative e / |t|     ulps e / ulp(t)     SNR = 10 log10(sum t^2 / sum e^2)

t is the float64 truth, a the candidate; ulp(t) is the distance of the numbers of the candidate's dtype around
t, so a correctly rounded element is off by half of one at most (Muller et al., Handbook of Floating-Point
Arithmetic, 2.6). Below the dtype's smallest normal number a machine may flush to zero: such elements count
with their absolute error and are listed apart, but have no part in relative errors and ulps.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..core.errors import UsageError
from .spread import CHUNK

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
ULP_EDGES = (0.5, *(2.0**power for power in range(11)))  # upper edges: half, 1, 2, 4, ... 1024


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its coordinates, both numbers, the absolute error; ulps NaN where they mean nothing."""

    index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    ulps: float


@dataclass(frozen=True, slots=True)
class Measures:
    """The spread of one tensor's errors.

    count: elements that are finite on both sides; nonfinite: the others, in no quantile, first among worst.
    abs_error, rel_error: quantile -> smallest error that so large a share of the elements does not exceed
    (NaN where no element counts; a relative error beside an exact zero is infinite unless it is exact).
    ulps: upper edge -> elements, "more" beyond the last. denormal: elements whose truth lies below the
    smallest normal number of the dtype, flushed: those of them that are zero in the candidate.
    """

    dtype: str
    count: int
    nonfinite: int
    abs_error: Mapping[str, float]
    rel_error: Mapping[str, float]
    ulps: Mapping[str, int]
    max_ulps: float
    snr_db: float
    denormal: int
    flushed: int
    worst: tuple[Element, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain numbers, for JSON."""
        return asdict(self)


def measure_elements(
    truth: torch.Tensor, actual: torch.Tensor, *, dtype: torch.dtype | None = None, worst: int = 8
) -> Measures:
    """Measure `actual` against `truth`: same shape, any float dtypes, not empty.

    dtype: whose ulps count, that of `actual` if None. worst: how many elements to list.
    Raises UsageError for shapes that differ, no element, or integers.
    """
    dtype = dtype or actual.dtype
    if truth.shape != actual.shape or not truth.numel() or not dtype.is_floating_point:
        raise UsageError(
            "measure errors",
            found=f"{tuple(actual.shape)} of {dtype} against {tuple(truth.shape)}",
            fix="Give float tensors of one shape, with an element or more",
        )
    flat_t, flat_a = truth.reshape(-1), actual.reshape(-1)
    size = flat_t.numel()
    errors, relative = np.empty(size), np.full(size, np.nan)
    ulps = np.full(size, np.nan)
    signal = noise = 0.0
    denormal = flushed = nonfinite = 0
    smallest = torch.finfo(dtype).smallest_normal
    for start in range(0, size, CHUNK):
        span = slice(start, start + CHUNK)
        t, a = flat_t[span].double().numpy(), flat_a[span].double().numpy()
        finite = np.isfinite(t) & np.isfinite(a)
        e = np.full(len(t), np.inf)
        np.abs(np.subtract(a, t, out=e, where=finite), out=e)
        small = finite & (np.abs(t) < smallest) & (t != 0)
        counts = finite & ~small
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(e == 0, 0.0, e / np.abs(t))
        relative[span] = np.where(counts, share, np.nan)
        ulps[span] = np.where(counts, e / ulp_of(np.where(finite, t, 1.0), dtype), np.nan)
        errors[span] = e
        signal += float(np.square(t[finite]).sum())
        noise += float(np.square(e[finite]).sum())
        nonfinite += int((~finite).sum())
        denormal += int(small.sum())
        flushed += int((small & (a == 0)).sum())
    counted = ulps[~np.isnan(ulps)]
    return Measures(
        dtype=str(dtype).removeprefix("torch."),
        count=size - nonfinite,
        nonfinite=nonfinite,
        abs_error=_quantiles(errors[np.isfinite(errors)]),
        rel_error=_quantiles(relative[~np.isnan(relative)]),
        ulps=ulp_histogram(counted),
        max_ulps=float(counted.max()) if counted.size else math.nan,
        snr_db=_decibels(signal, noise) if nonfinite < size else math.nan,
        denormal=denormal,
        flushed=flushed,
        worst=tuple(
            Element(
                index=tuple(int(i) for i in np.unravel_index(at, tuple(truth.shape))),
                actual=float(flat_a[at]),
                expected=float(flat_t[at]),
                error=float(errors[at]),
                ulps=float(ulps[at]),
            )
            for at in _largest(errors, worst)
        ),
    )


def ulp_of(t: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance between numbers of `dtype` around each t: 2^(exponent - mantissa bits), its range's at the ends."""
    info = torch.finfo(dtype)
    lowest = math.frexp(info.smallest_normal)[1] - 1
    highest = math.frexp(info.max)[1] - 1
    exponent = np.clip(np.frexp(t)[1] - 1, lowest, highest)
    return np.ldexp(info.eps, np.where(t == 0, lowest, exponent))


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """The smallest element that a share q of all elements does not exceed; NaN of none."""
    if not values.size:
        return dict.fromkeys(QUANTILES, math.nan)
    ranks = {name: max(0, math.ceil(q * values.size) - 1) for name, q in QUANTILES.items()}
    ordered = np.partition(values, sorted(set(ranks.values())))
    return {name: float(ordered[rank]) for name, rank in ranks.items()}


def ulp_histogram(ulps: np.ndarray) -> dict[str, int]:
    """How many elements fall to each bin (edge before, edge]."""
    bins = np.bincount(np.searchsorted(ULP_EDGES, ulps), minlength=len(ULP_EDGES) + 1)
    names = [*(f"{edge:g}" for edge in ULP_EDGES), "more"]
    return {name: int(n) for name, n in zip(names, bins, strict=True)}


def _decibels(signal: float, noise: float) -> float:
    """Infinite for an exact result, minus infinity where the truth is zero and the result is not."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _largest(errors: np.ndarray, k: int) -> list[int]:
    """Where the k largest errors lie, the largest first; of equal ones the first."""
    k = min(k, errors.size)
    if not k:
        return []
    edge = np.partition(errors, errors.size - k)[errors.size - k]
    above = np.flatnonzero(errors > edge)
    chosen = np.concatenate([above, np.flatnonzero(errors == edge)[: k - above.size]])
    return [int(at) for at in sorted(chosen, key=lambda at: (-errors[at], at))]
