"""How sure a mean over the positions of a text is: a moving-block bootstrap.

    positions -> blocks of neighbours drawn with replacement -> means -> the middle 95 % of them

Neighbouring tokens go wrong together, so single positions would make the interval too narrow.
Source: Kuensch, "The jackknife and the bootstrap for general stationary observations" (1989).
"""

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
    means = blocks[starts].mean(dim=1)
    tail = (1 - SHARE) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return (low, high)
