"""In which order linears are worth keeping high, and how many of them a budget needs.

Damage of small roundings adds up nearly, so the order comes from each linear alone; how many are needed is measured on the
whole graph, near where the sum says.

n linears, passes over the graph:
    few      n/2 to measure each (those before it are shared), at most 2 log2(n) to find the cut
    many     about 3 + SAMPLES for gradients, as many for the cut, finalists / 2 to measure those next to it, and
             2 log2(finalists) to find it among them again; the others stay on their side
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import onnx_ir as ir

from ...core.errors import UsageError
from ...core.progress import Progress, Step
from ...graph.io import load_model
from ..linears.find import Linear
from ..quantize.options import QuantizeOptions
from .cost import Roofline
from .gradients import estimated_gains
from .judge import LABELS, BudgetMeasure, Judge, Reading
from .measures import distance
from .rounded import Feeds, Switchboard

Order = Literal["cheapest", "fewest"]
SAMPLES = 4  # random directions for each feed


@dataclass(frozen=True, slots=True)
class Budget:
    """What must hold: the measure (judge.py) of the quantised graph against the unquantised one, at most `limit`.

    order: keep the linears that give the most accuracy for the time they cost, or simply the most accuracy.
    least_share: of the FLOPs of all linears that must be quantised in the end. finalists: linears that are measured one
    by one; where there are more, the others' part is estimated from gradients, whose random directions follow from seed.
    """

    limit: float
    measure: BudgetMeasure = "kl"
    order: Order = "cheapest"
    least_share: float = 0.0
    finalists: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """UsageError for a ratio to the unquantised graph that is not above the 1 which that graph has itself."""
        if self.measure in ("perplexity", "floor") and not self.limit > 1:
            raise UsageError(
                f"{LABELS[self.measure]} {self.limit:g}",
                found="the unquantised graph itself has 1",
                fix="Give more than 1",
            )


@dataclass(frozen=True, slots=True)
class Entry:
    """One linear, or those that a packed one was made of. measured: whether its gain is, or estimated."""

    name: str
    members: tuple[str, ...]
    gain: float
    cost: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """order: candidates, most worth keeping first, of which `count` are kept; all_quantized: with none kept."""

    order: tuple[Entry, ...]
    count: int
    all_quantized: Reading
    seconds_all: float
    judge: Judge


def ranking(
    source: str | Path,
    feeds: Feeds,
    trial: Feeds,
    options: QuantizeOptions,
    budget: Budget,
    roofline: Roofline,
    progress: Progress,
) -> Ranking:
    """Everything that needs the switchable graph, which is gone when the file is written."""
    board = Switchboard(load_model(source), options)
    judge = Judge(board, trial, budget.measure)
    if not board.candidates:
        return Ranking((), 0, judge.read(judge.reference), 0.0, judge)
    board.calibrate(feeds, ir.DataType.FLOAT, progress)
    return rank(board, judge, budget, roofline, progress)


def rank(
    board: Switchboard, judge: Judge, budget: Budget, roofline: Roofline, progress: Progress
) -> Ranking:
    """The ranking of a calibrated graph's candidates, of which there is one at least."""
    job = _Job(board, judge, budget, roofline, progress)
    order, count, worst = job.run()
    return Ranking(
        order=tuple(
            Entry(x.name, board.members[x], job.gains[x], job.costs[x], x in job.measured)
            for x in order
        ),
        count=count,
        all_quantized=worst,
        seconds_all=sum(roofline.seconds(x, board.options.format) for x in board.candidates),
        judge=judge,
    )


class _Job:
    """gains: what each linear alone does to what they are ranked by, as far as it is known; measured: those that are not estimated."""

    def __init__(
        self,
        board: Switchboard,
        judge: Judge,
        budget: Budget,
        roofline: Roofline,
        progress: Progress,
    ) -> None:
        self.board, self.judge = board, judge
        self.budget, self.progress = budget, progress
        self.costs = {
            x: roofline.seconds(x, "fp16") - roofline.seconds(x, board.options.format)
            for x in board.candidates
        }
        self.gains: dict[Linear, float] = {}
        self.measured: set[Linear] = set()

    def run(self) -> tuple[list[Linear], int, Reading]:
        """The order, how many of it must be kept, and the reading with none kept."""
        candidates, finalists = self.board.candidates, self.budget.finalists
        if len(candidates) > finalists:
            self.gains = self._estimated()
        self._measure([x for x in candidates if x not in self.gains])
        order = self._sorted(candidates)
        worst = self._whole(order, 0)
        if worst.value <= self.budget.limit:
            return order, 0, worst
        count = self._fewest(order, worst.value, 0, len(order))
        if len(self.measured) == len(order):
            return order, count, worst
        first = max(0, min(count - finalists // 2, len(order) - finalists))
        window = order[first : first + finalists]
        self._measure(window)
        order[first : first + finalists] = self._sorted(window)
        return order, self._fewest(order, worst.value, first, first + len(window)), worst

    def _estimated(self) -> dict[Linear, float]:
        return estimated_gains(
            self.board,
            self.judge.trial,
            self.judge.reference,
            self.judge.ranked_by,
            samples=SAMPLES,
            seed=self.budget.seed,
            progress=self.progress,
        )

    def _measure(self, linears: Collection[Linear]) -> None:
        """Quantise each of `linears` alone; what is still estimated is scaled as these tell that it should be."""
        todo = set(linears) - self.measured
        ratios = []
        for number, (linear, outputs) in enumerate(self.board.alone(self.judge.trial, todo)):
            self.progress(Step("sensitivity", number, len(todo), linear.name))
            gain = distance(self.judge.ranked_by, self.judge.reference, outputs)
            if self.gains.get(linear):
                ratios.append(gain / self.gains[linear])
            self.gains[linear] = gain
        self.progress(Step("sensitivity", len(todo), len(todo)))
        self.measured |= todo
        if ratios:
            scale = median(ratios)
            self.gains |= {x: g * scale for x, g in self.gains.items() if x not in self.measured}

    def _sorted(self, linears: Collection[Linear]) -> list[Linear]:
        return sorted(
            linears, key=lambda x: -_worth(self.gains[x], self.costs[x], self.budget.order)
        )

    def _whole(self, order: Sequence[Linear], count: int) -> Reading:
        """The reading with the first `count` of `order` kept."""
        self.progress(Step("search", detail=f"{count} of {len(order)} linears kept"))
        return self.judge.read(self.board.outputs(self.judge.trial, order[:count]))

    def _fewest(self, order: Sequence[Linear], worst: float, low: int, high: int) -> int:
        """The shortest prefix of `order` that meets the budget; `low` misses it, `high` is believed to meet it.

        Where the measure is not monotone in the number kept, as perplexity is not, one prefix that meets it whose
        shorter neighbour does not.

        Looked for in growing steps from where the gains, scaled to add up to `worst`, say that it is, then by bisection.
        """
        probe, step, side = self._predicted(order, worst), 1, None
        while high - low > 1:
            probe = min(max(probe, low + 1), high - 1)
            holds = self._whole(order, probe).value <= self.budget.limit
            low, high = (low, probe) if holds else (probe, high)
            side = holds if side is None else side
            if step and holds == side:
                probe, step = probe + (-step if holds else step), 2 * step
            else:  # the cut lies between two of these: bisection from now on
                probe, step = (low + high) // 2, 0
        return high

    def _predicted(self, order: Sequence[Linear], worst: float) -> int:
        """How many must be kept if damage adds up: the KL divergence by itself, errors by their squares."""
        power = 1 if self.judge.ranked_by == "kl" else 2
        gains = [self.gains[x] ** power for x in order]
        share = self._damage(self.budget.limit) / self._damage(worst)
        left, allowed = sum(gains), sum(gains) * share
        for count, gain in enumerate(gains):
            if left <= allowed:
                return count
            left -= gain
        return len(order)

    def _damage(self, value: float) -> float:
        """What adds up in a value of the budget's measure, nothing where it is less than the unquantised graph's."""
        if self.budget.measure == "perplexity":
            return math.log(max(value, 1.0))
        if self.budget.measure == "floor":
            return max(value, 1.0) ** 2 - 1
        return float(max(value, 0.0) ** (1 if self.budget.measure == "kl" else 2))


def _worth(gain: float, cost: float, order: Order) -> float:
    """What a linear's place in the list follows from; one that saves no time is the first to stay high."""
    if order == "fewest":
        return gain
    return gain / cost if cost > 0 else float("inf")
