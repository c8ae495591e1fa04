"""Spread: how far one tensor lies from the float64 truth, as sums that can be pooled over cases.

    rms = sqrt(sum e^2 / n)    cosine = sum t a / sqrt(sum t^2 sum a^2)

e = a - t, elementwise in float64; walked in chunks, so memory stays small beside the tensors.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..core.manifest import ErrorRecord

# Elements at a time: temporaries stay in the cache, and torch starts no threads for so few. With BLAS dot
# products or larger chunks the same sums took 10 to 40 times the processor time on two busy cores.
CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class Spread:
    """Sums of the errors of one tensor.

    nonfinite: elements that are not finite where the truth is, or miss a declared infinity; with one of
    them every error is infinite. truth_nonfinite: elements where the truth itself says nothing; with one
    of them every error is NaN. worst_index: the coordinates of the largest error.
    """

    count: int
    abs_sum: float
    square_sum: float
    truth_square: float
    actual_square: float
    product: float
    max_abs: float
    worst_index: tuple[int, ...]
    worst_actual: float
    worst_expected: float
    nonfinite: int = 0
    truth_nonfinite: int = 0

    @property
    def rms(self) -> float:
        """Root of the mean squared error."""
        return math.sqrt(self.square_sum / self.count) if self.count else math.nan

    @property
    def mean_abs(self) -> float:
        """Mean of the absolute error."""
        return self.abs_sum / self.count if self.count else math.nan

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two; 1 between two zero tensors, 0 where one of them is zero.

        NaN where a number is not finite.
        """
        if math.isnan(self.product):
            return math.nan
        one, other = math.sqrt(self.truth_square), math.sqrt(self.actual_square)
        if one == 0 or other == 0:
            return 1.0 if one == other else 0.0
        return max(-1.0, min(1.0, self.product / one / other))


def measure(truth: torch.Tensor, actual: torch.Tensor, *, infinities: bool = False) -> Spread:
    """The spread of `actual` about `truth`; same shape, any float dtypes, not empty.

    infinities: the truth may hold infinities; where `actual` has the same ones they count as exact.
    """
    assert truth.shape == actual.shape and truth.numel(), (truth.shape, actual.shape)
    flat_t, flat_a = truth.reshape(-1), actual.reshape(-1)
    sums = torch.zeros(5, dtype=torch.float64)
    worst, largest, count = 0, -1.0, 0
    broken, silent, first_broken = 0, 0, -1
    for start in range(0, flat_t.numel(), CHUNK):
        t = flat_t[start : start + CHUNK].double()
        a = flat_a[start : start + CHUNK].double()
        error, part = _sums(t, a)
        if part.isfinite().all():
            count += len(t)
        else:  # look closely: which side is not finite, and was it declared?
            known = t.isfinite() | (t.isinf() if infinities else False)
            good = (t.isfinite() & a.isfinite()) | (known & (t == a))
            bad = known & ~good
            if bad.any():
                broken += int(bad.sum())
                first_broken = start + int(bad.int().argmax()) if first_broken < 0 else first_broken
            silent += int((~known).sum())
            use = good & t.isfinite()
            error, part = _sums(t.where(use, 0.0), a.where(use, 0.0))
            count += int(use.sum())
        sums += part
        at = int(error.argmax())
        if float(error[at]) > largest:
            largest, worst = float(error[at]), start + at
    abs_sum, square_sum, truth_square, actual_square, product = sums.tolist()
    if silent:
        abs_sum = square_sum = truth_square = actual_square = product = largest = math.nan
    elif broken:
        abs_sum = square_sum = largest = math.inf
        product, worst = math.nan, first_broken
    elif not count:  # nothing but infinities, all as declared
        count, largest = len(flat_t), 0.0
    return Spread(
        count=count,
        abs_sum=abs_sum,
        square_sum=square_sum,
        truth_square=truth_square,
        actual_square=actual_square,
        product=product,
        max_abs=largest,
        worst_index=_coordinates(worst, truth.shape),
        worst_actual=float(flat_a[worst]),
        worst_expected=float(flat_t[worst]),
        nonfinite=broken,
        truth_nonfinite=silent,
    )


def row_error(truth: torch.Tensor, actual: torch.Tensor) -> float:
    """Relative error of an inner value [..., width]: sqrt(mean over rows of |e|^2 / |t|^2).

    Each row counts against its own size. Hidden states need that: where the first token's residual is a
    thousand times larger than any other's, a norm over the whole tensor would weigh one rounding of one
    element. A row of zeros counts 0 when exact, else makes the error infinite; NaN anywhere gives NaN.
    """
    t = truth.reshape(-1, truth.shape[-1]).double()
    e = actual.reshape(t.shape).double() - t
    squares, sizes = e.square().sum(dim=1), t.square().sum(dim=1)
    rows = torch.where((sizes == 0) & (squares == 0), 0.0, squares / sizes)
    return float(rows.mean().sqrt())


def _sums(t: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute errors, and the sums that a Spread holds; the sums are finite where all numbers are."""
    error = (a - t).abs_()
    products = (error * error, t * t, a * a, t * a)
    return error, torch.stack([error.sum(), *(product.sum() for product in products)])


def pool(spreads: Iterable[Spread]) -> Spread:
    """One spread over all elements of several; the worst element is the worst of theirs."""
    parts = list(spreads)
    worst = max(parts, key=lambda s: math.inf if math.isnan(s.max_abs) else s.max_abs)
    return Spread(
        count=sum(s.count for s in parts),
        abs_sum=sum(s.abs_sum for s in parts),
        square_sum=sum(s.square_sum for s in parts),
        truth_square=sum(s.truth_square for s in parts),
        actual_square=sum(s.actual_square for s in parts),
        product=sum(s.product for s in parts),
        max_abs=worst.max_abs,
        worst_index=worst.worst_index,
        worst_actual=worst.worst_actual,
        worst_expected=worst.worst_expected,
        nonfinite=sum(s.nonfinite for s in parts),
        truth_nonfinite=sum(s.truth_nonfinite for s in parts),
    )


def error_ratio(spread: Spread, floor: Spread) -> float:
    """rms error over the floor's rms error.

    A floor of zero means that PyTorch computes the output exactly: the ratio is then 0 for an exact
    candidate and infinite for any other. Where either side is not finite there is no ratio: NaN.
    """
    if not (math.isfinite(spread.rms) and math.isfinite(floor.rms)):
        return math.nan
    if floor.rms == 0:
        return 0.0 if spread.rms == 0 else math.inf
    return spread.rms / floor.rms


def error_record(name: str, spread: Spread, floor: Spread, *, case: str = "") -> ErrorRecord:
    """The manifest's record of one output of one case."""
    return ErrorRecord(
        output=name,
        case=case,
        max_abs=spread.max_abs,
        mean_abs=spread.mean_abs,
        cosine=spread.cosine,
        floor_max_abs=floor.max_abs,
        floor_mean_abs=floor.mean_abs,
        ratio=error_ratio(spread, floor),
        worst_index=spread.worst_index,
        worst_actual=spread.worst_actual,
        worst_expected=spread.worst_expected,
        nonfinite=spread.nonfinite,
    )


def _coordinates(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The coordinates of element number `flat` in row-major order."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
