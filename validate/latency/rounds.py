"""Take the times: the first call, a warm-up until the workload has settled, then rounds in which all sides take turns.

    round    a random order of the sides, then the same order backwards: A B B A, B A A B, ...

A drift that is linear over a round hits both sides alike; the random order takes what is periodic. How many rounds
and how many calls in each is settled before the first of them; only the clock can end them early, no result can.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...core.errors import UsageError
from ...core.progress import Progress, Step, silent
from .statistics import LEAST_ROUNDS, has_settled
from .workload import Feeds, Workload

OVERTIME = 1.5  # rounds that other processes stretch end by the clock


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. seconds: of measuring for each side and size, more where twelve rounds take longer.

    warmup_seconds: least and most for a side to settle. slot_seconds: how long a side runs before the next has its
    turn. seed: of the order.
    """

    seconds: float = 5.0
    warmup_seconds: tuple[float, float] = (0.1, 20.0)
    slot_seconds: float = 0.02
    most_rounds: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(
                f"measure for {self.seconds} seconds",
                found="no length of time",
                fix="Give a positive number of seconds for each side",
            )


@dataclass(slots=True)
class Series:
    """What one side took, in seconds. rounds: one number a round, the mean of its two turns' medians."""

    first: float
    warmup: list[float]
    settled: bool
    calls: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)


def measure(
    sides: Sequence[Workload],
    feeds: Sequence[Feeds],
    effort: Effort = Effort(),
    *,
    progress: Progress = silent,
    now: Callable[[], float] = time.monotonic,
) -> list[Series]:
    """The times of every side on its feeds, in the order of `sides`. now: seconds, for the budgets only."""
    series = []
    for side, given in zip(sides, feeds, strict=True):
        progress(Step("bench", 0, 0, f"warm up {side.label}"))
        side.prepare(given)
        series.append(_warm_up(side, effort, now))
    turns = [_calls_in_a_turn(s, effort) for s in series]
    rounds = _count_rounds(series, turns, effort)
    deadline = now() + OVERTIME * effort.seconds * len(sides)
    order = random.Random(effort.seed)
    indices = list(range(len(sides)))
    for number in range(rounds):
        if number >= LEAST_ROUNDS and now() > deadline:
            break
        progress(Step("bench", number, rounds, f"round {number + 1} of {rounds}"))
        order.shuffle(indices)
        medians: dict[int, list[float]] = {index: [] for index in indices}
        for index in (*indices, *reversed(indices)):
            if turns[index] > 1:
                sides[
                    index
                ].time()  # refills caches that the other side emptied, outlasts its threads
            taken = [sides[index].time() for _ in range(turns[index])]
            series[index].calls += taken
            medians[index].append(statistics.median(taken))
        for index, pair in medians.items():
            series[index].rounds.append(statistics.fmean(pair))
    return series


def _warm_up(side: Workload, effort: Effort, now: Callable[[], float]) -> Series:
    least, most = effort.warmup_seconds
    first = side.time()
    start, taken = now(), []
    while True:
        taken.append(side.time())
        spent = now() - start
        settled = spent >= least and has_settled(taken)
        if settled or spent > most:
            return Series(first, taken, settled)


def _typical(series: Series) -> float:
    return max(statistics.median(series.warmup[-12:]), 1e-9)


def _calls_in_a_turn(series: Series, effort: Effort) -> int:
    return max(1, round(effort.slot_seconds / _typical(series)))


def _count_rounds(series: Sequence[Series], turns: Sequence[int], effort: Effort) -> int:
    """As many as the time allows for the slowest side."""
    longest = max(2 * count * _typical(s) for s, count in zip(series, turns, strict=True))
    return min(max(int(effort.seconds / longest), LEAST_ROUNDS), effort.most_rounds)
