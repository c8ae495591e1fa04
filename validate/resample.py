"""How sure a measure is that a few inputs gave: the bootstrap.

    positions -> blocks of neighbours drawn with replacement -> means -> the middle 95 % of them
    seeds     -> drawn with replacement -> error over floor of each draw -> the middle 95 % of them

Neighbouring tokens go wrong together, so single positions would make the interval too narrow.
Source: Kuensch, "The jackknife and the bootstrap for general stationary observations" (1989); Efron and Tibshirani,
"An Introduction to the Bootstrap" (1993).
"""

import math
from collections.abc import Sequence

import torch

RESAMPLES = 2000
BLOCK = 16  # positions that are drawn together
SHARE = 0.95

Interval = tuple[float, float]


def mean_interval(values: torch.Tensor, *, seed: int = 0) -> Interval:
    """The 95 % interval of the mean of `values`, any float dtype, [positions] with one or more.

    Blocks wrap around the end, so every position is drawn equally often. A value that is not finite
    makes both ends NaN.
    """
    numbers = values.double()
    count = len(numbers)
    if not bool(numbers.isfinite().all()):
        return (float("nan"), float("nan"))
    block = max(1, min(BLOCK, count // 4))
    wrapped = torch.cat([numbers, numbers[: block - 1]])
    blocks = wrapped.unfold(0, block, 1).mean(dim=1)  # one for each start
    draws = -(-count // block)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(count, (RESAMPLES, draws), generator=generator)
    return _middle(blocks[starts].mean(dim=1))


def ratio_interval(errors: Sequence[float], floors: Sequence[float], *, seed: int = 0) -> Interval:
    """The 95 % interval of sqrt(sum errors / sum floors) from one sum of squares on each side for each of two inputs or more.

    Both ends are NaN where a sum is not finite, or a floor is zero.
    """
    pairs = torch.tensor([errors, floors], dtype=torch.float64)
    count = pairs.shape[1]
    if not bool(pairs.isfinite().all()) or not bool((pairs[1] > 0).all()):
        return (math.nan, math.nan)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(count, (RESAMPLES, count), generator=generator)
    above, below = pairs[:, draws].sum(dim=2)
    return _middle((above / below).sqrt())


def _middle(values: torch.Tensor) -> Interval:
    """What the middle 95 % of the numbers lie between."""
    tail = (1 - SHARE) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64)
    low, high = torch.quantile(values, ends).tolist()
    return (low, high)
