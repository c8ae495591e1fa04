"""What samples of time say: when a workload has settled, its percentiles, and whether one side is slower.

    round r: side A takes a_r, side B takes b_r, a moment apart
    ratio    median over r of a_r / b_r      a load that slows a whole round cancels
    interval paired bootstrap: rounds are drawn with replacement, the median of each draw is noted

Round ratios have heavy tails (another process takes the core), so medians, not means.
Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["faster", "slower", "no difference"]

HALF = 6  # samples in each of the two windows that settling compares
DRIFT_SHARE = 0.34  # 1.96 standard deviations of the Mann-Whitney share for two windows of six
CLOSE = 0.01  # medians that are this close have settled, however small the noise
RESAMPLES = 4000
CONFIDENCE = 0.99
LEAST_ROUNDS = 12  # the median of fewer than eight has no 99 % interval at all


@dataclass(frozen=True, slots=True)
class Ratio:
    """value: median of the rounds' ratios; low, high: its 99 % interval."""

    value: float
    low: float
    high: float
    rounds: int

    def verdict(self, threshold: float) -> Verdict:
        """A difference only where the interval excludes 1 and the ratio leaves 1 by `threshold` or more."""
        if self.low > 1 and self.value >= 1 + threshold:
            return "slower"
        if self.high < 1 and self.value <= 1 / (1 + threshold):
            return "faster"
        return "no difference"


def has_settled(seconds: Sequence[float]) -> bool:
    """Whether the newest samples neither rise nor fall any more.

    The newest six are compared with the six before: settled when the share of pairs in which the older sample is
    larger is what chance gives (a two-sided Mann-Whitney test at 5 %), or when the medians agree within 1 %.
    """
    if len(seconds) < 2 * HALF:
        return False
    older, newer = np.asarray(seconds[-2 * HALF : -HALF]), np.asarray(seconds[-HALF:])
    above = (older[:, None] > newer).mean() + (older[:, None] == newer).mean() / 2
    apart = abs(float(np.median(newer) / np.median(older)) - 1)
    return bool(abs(above - 0.5) <= DRIFT_SHARE) or apart <= CLOSE


def percentile(seconds: Sequence[float], percent: float) -> float | None:
    """The percentile of the samples; None where they are too few to have one (10 for p90, 100 for p99)."""
    if len(seconds) * (100 - percent) < 100:
        return None
    return float(np.percentile(seconds, percent))


def paired_ratio(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Ratio:
    """How much longer side A takes than side B, from the seconds of both in the same rounds."""
    assert len(a) == len(b) >= LEAST_ROUNDS, "rounds are planned before they are run"
    logs = np.log(np.asarray(a, np.float64) / np.asarray(b, np.float64))
    generator = np.random.default_rng(seed)
    draws = generator.integers(len(logs), size=(RESAMPLES, len(logs)))
    medians = np.median(logs[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(medians, (tail, 1 - tail)))
    return Ratio(float(np.exp(np.median(logs))), float(low), float(high), len(logs))
