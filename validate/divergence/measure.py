"""Is one value's local error more than rounding explains? Over the whole tensor, each row and each channel.

    over = error / allowed      allowed = min(K * noise, max(CAP * u, 2^-9) * size)

error: rms of actual - expected. noise: rms of what rounding the inputs, the weights and the result by one unit
roundoff u changes. size: rms of the expected numbers. A row is one index of all axes but the last, a channel one
index of the last: a single bad position or weight row shows there, however small the mean. Over 1 is a divergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

K_WHOLE = 3.0  # another order of sums and a second rounding inside an operator stay below it
K_PART = 6.0  # a row or a channel holds few numbers: its own noise scatters
CAP = 64.0  # an operator that makes 64 roundings of one is ill-conditioned, and said to be
CAP_NARROW = 8.0  # the same where the reference, of the same working type, computes in a wider one
HARMLESS = 2.0**-9  # relative error up to which the cap is not asked: fp32 angles of long texts
FEWEST = 8  # numbers in a row or a channel from which its noise means something
NEAR = 9  # rows whose noise is alike
HUGE = 1e30  # a masking number: every such number stands for minus (or plus) infinity

Place = Literal["whole", "row", "channel", "elements"]


@dataclass(frozen=True, slots=True)
class LocalError:
    """How far an operator's result is off when its inputs are right.

    over: error over what is allowed, the largest of whole, rows and channels; 1 is the limit. place, index: where
    that is. relative: rms error over rms expected of the whole tensor. wrong: elements that are not finite or,
    for integers and truth values, not equal. capped: within the noise of its inputs, which this operator makes large.
    """

    over: float
    place: Place
    index: tuple[int, ...]
    relative: float
    noise: float
    unit: float
    wrong: int = 0
    capped: bool = False

    @property
    def diverged(self) -> bool:
        return not self.over <= 1


def local_error(
    expected: torch.Tensor,
    actual: torch.Tensor,
    redrawn: Sequence[torch.Tensor],
    *,
    unit: float,
    smallest: float = 0.0,
    cap: float = CAP,
) -> LocalError:
    """Judge `actual` against `expected` (equal shapes).

    redrawn: results of the computed one of the two, first as it is, then with rounding drawn anew; their spread
    is the noise. unit: unit roundoff of the narrowest type involved; smallest: half the spacing of subnormal
    numbers in the result's type; cap: how many roundings an operator may make of one.
    """
    if not expected.is_floating_point() or not actual.is_floating_point():
        return _exact(expected, actual, redrawn)
    if not expected.numel():
        return LocalError(0.0, "whole", (), 0.0, 0.0, unit)
    expected, actual = expected.double(), actual.double()
    expected, actual, others = _unmasked(expected, actual, [r.double() for r in redrawn])
    bad = ~torch.isfinite(actual) & torch.isfinite(expected)
    bad |= torch.isinf(expected) & (actual != expected)
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        return LocalError(torch.inf, "elements", index, torch.inf, 0.0, unit, int(bad.sum()))
    error = _rows((actual - expected).nan_to_num(0.0, 0.0, 0.0))
    size = _rows(expected.nan_to_num(0.0, 0.0, 0.0))
    noise = _rows(_spread(others))
    rms = float(size.square().mean().sqrt())
    relative = float(error.square().mean().sqrt()) / rms if rms else float(error.abs().max() > 0)
    floor = float(noise.square().mean().sqrt()) / rms if rms else 0.0
    limits = (unit, smallest, cap)
    over, capped = _over(error, size, noise, None, K_WHOLE, limits)
    found = [LocalError(float(over), "whole", (), relative, floor, unit, 0, bool(capped))]
    places: tuple[tuple[Place, int], ...] = (("row", 1), ("channel", 0))
    for place, axis in places:
        if error.shape[axis] < FEWEST or error.shape[1 - axis] < 2:
            continue
        over, capped = _over(error, size, noise, axis, K_PART, limits)
        at = over.argmax()
        spot = torch.unravel_index(at, expected.shape[:-1]) if place == "row" else (at,)
        index = tuple(int(i) for i in spot)
        part = LocalError(float(over[at]), place, index, relative, floor, unit, 0, bool(capped[at]))
        found.append(part)
    return max(found, key=lambda part: part.over)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, channels]"""
    return x.reshape(-1, x.shape[-1]) if x.ndim and x.numel() else x.reshape(1, -1)


def _spread(others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Elementwise size of the noise: how far the redrawn results lie from the first."""
    first, *rest = others
    parts = [(o - first).nan_to_num(0.0, 0.0, 0.0).square() for o in rest]
    return torch.stack(parts).mean(0).sqrt() if parts else torch.zeros_like(first)


def _over(
    error: torch.Tensor,
    size: torch.Tensor,
    noise: torch.Tensor,
    axis: int | None,
    factor: float,
    limits: tuple[float, float, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Error over allowed along `axis` (None: all), and whether only the cap was broken. limits: unit, smallest, cap."""
    unit, smallest, cap = limits

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x.square().mean().sqrt() if axis is None else x.square().mean(axis).sqrt()

    wide = rms(size)
    drawn = rms(noise)
    if axis == 1 and len(drawn) > NEAR:
        drawn = torch.maximum(drawn, _median_near(drawn) / 2)
    floor = torch.sqrt(drawn.square() + (unit * wide).square() / 3)
    if axis is not None:  # a part much smaller than the rest still takes part in their sums
        floor = torch.maximum(floor, unit * size.square().mean().sqrt() / 16)
        wide = torch.maximum(wide, size.square().mean().sqrt() / 16)
    by_noise = factor * floor + smallest
    allowed = torch.minimum(by_noise, max(cap * unit, HARMLESS) * wide + smallest)
    found = rms(error)
    tiny = torch.finfo(torch.float64).tiny
    return found / allowed.clamp(min=tiny), (found <= by_noise) & (found > allowed)


def _median_near(noise: torch.Tensor) -> torch.Tensor:
    """The median of each row's noise and that of the rows around it: two draws alone may both happen to do nothing."""
    half = NEAR // 2
    padded = torch.nn.functional.pad(noise[None, None], (half, half), mode="replicate")
    return padded[0, 0].unfold(0, NEAR, 1).median(-1).values


def _unmasked(
    expected: torch.Tensor, actual: torch.Tensor, others: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Numbers that only mask (beyond HUGE, or -65504 and less among zeros) become one infinity on all sides."""
    far = expected.abs() >= HUGE
    if bool((expected <= -1e4).any()) and len(torch.unique(expected.reshape(-1)[:4096])) <= 2:
        far |= (expected <= -1e4) & (actual <= -1e4)
    if not bool(far.any()):
        return expected, actual, others
    limit = torch.inf * expected.sign()

    def clip(x: torch.Tensor) -> torch.Tensor:
        gone = far & ((x.abs() >= 1e4) | x.isinf()) & (x.sign() == expected.sign())
        return torch.where(gone, limit, x)

    left = far & ~clip(actual).isinf()
    actual = torch.where(left, torch.nan, clip(actual))  # a number where the reference masks
    expected = torch.where(left, 0.0, torch.where(far, limit, expected))
    return expected, actual, [clip(o) for o in others]


def _exact(
    expected: torch.Tensor, actual: torch.Tensor, redrawn: Sequence[torch.Tensor]
) -> LocalError:
    """Integers and truth values are equal, but for those that rounding flips (the index of a tie)."""
    differs = expected != actual
    for other in redrawn[1:]:
        differs &= other == redrawn[0]
    count = int(differs.sum())
    index = tuple(int(i) for i in differs.nonzero()[0]) if count else ()
    share = count / max(differs.numel(), 1)
    return LocalError(torch.inf if count else 0.0, "elements", index, share, 0.0, 0.0, count)


def relative_error(reference: torch.Tensor, actual: torch.Tensor) -> float:
    """rms(actual - reference) / rms(reference), over elements that are finite in the reference."""
    r, a = reference.double(), actual.double()
    keep = r.isfinite() & (r.abs() < 1e30)
    r, a = r[keep], a[keep]
    size = float(r.square().mean().sqrt()) if r.numel() else 0.0
    error = float((a - r).square().mean().sqrt()) if r.numel() else 0.0
    if error != error:
        return torch.inf
    return error / size if size else (0.0 if error == 0 else torch.inf)
