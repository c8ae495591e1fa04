"""Find the linears to leave in 16 bits so that the quantised graph stays within a budget.

calibrate -> what each linear alone costs in accuracy, and saves in time -> the shortest list that suffices -> file

Damage of small roundings adds up nearly, so the order comes from each linear alone; how many are needed is found by
bisection on the whole graph, and the written file is measured again.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch

from ...core.errors import GateError, UsageError
from ...core.progress import Progress, Step, silent
from ...graph.evaluator import TypedEvaluator
from ...graph.io import load_model
from ..quantize.linears import Linear
from ..quantize.options import QuantizeOptions
from ..quantize.quantize import quantize_file
from ..quantize.report import QuantizeReport
from .cost import Roofline
from .measures import Measure, Outputs, distance
from .rounded import Switchboard

Feeds = Sequence[Mapping[str, torch.Tensor]]
Order = Literal["cheapest", "fewest"]
GROWTH = 1.15  # how many more linears are kept where the written file misses the budget
TRIES = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """What must hold: the measure of the quantised graph against the unquantised one, at most `limit`.

    order: keep the linears that give the most accuracy for the time they cost, or simply the most accuracy.
    least_share: of the FLOPs of all linears that must be quantised in the end.
    """

    limit: float
    measure: Measure = "kl"
    order: Order = "cheapest"
    least_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One linear. gain: of the measure when it stays high, alone; cost: roofline seconds; kept: the outcome."""

    name: str
    gain: float
    cost: float
    kept: bool


@dataclass(frozen=True, slots=True)
class SearchReport:
    """choices: every candidate, most worth keeping first. all_quantized, reached: the measure before and after.

    seconds_all: roofline seconds of all linears when every candidate is quantised.
    """

    budget: Budget
    all_quantized: float
    reached: float
    seconds_all: float
    choices: tuple[Choice, ...]
    quantize: QuantizeReport

    @property
    def kept(self) -> tuple[Choice, ...]:
        """The linears that stay high."""
        return tuple(choice for choice in self.choices if choice.kept)

    def to_json(self) -> dict[str, Any]:
        """Everything but the quantisation's own report as plain data."""
        plain = {key: value for key, value in asdict(self).items() if key != "quantize"}
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    def lines(self, base: str) -> tuple[str, ...]:
        """One line for each linear that stays high: what it gains and what it costs."""
        measure = "KL" if self.budget.measure == "kl" else "error"
        return tuple(
            f"{c.name}: {base}, gains {c.gain / self.all_quantized:.2%} of the {measure} that all cost together, "
            f"costs {c.cost / self.seconds_all:.2%} time"
            for c in self.kept
        )


def search_file(
    source: str | Path,
    output: str | Path,
    feeds: Feeds,
    trial: Feeds,
    options: QuantizeOptions,
    budget: Budget,
    roofline: Roofline,
    progress: Progress = silent,
) -> SearchReport:
    """Quantise `source` into `output` with the linears kept high that `budget` asks for.

    feeds: for scales and rounding, as in quantize_file. trial: other inputs, on which the budget is measured. The same
    arguments give the same file. Raises GateError where the budget is missed with every candidate kept high or the least
    share is not reached, UsageError for kv_cache, and what quantize_file raises; nothing is left then.
    """
    if options.kv_cache:
        raise UsageError(
            "search within a budget, with kv_cache",
            found="the quantised graph takes FP8 caches, which the trial's inputs are not",
            fix="Search without kv_cache, then quantise with kv_cache and the linears that it kept",
        )
    plan = _plan(source, feeds, trial, options, budget, roofline, progress)
    output, count = Path(output), plan.count
    for attempt in range(TRIES):
        high = [name for entry in plan.order[:count] for name in entry.members]
        kept = replace(options, keep=tuple(dict.fromkeys((*options.keep, *high))))
        with tempfile.TemporaryDirectory(prefix=".search.", dir=_folder(output)) as scratch:
            made = Path(scratch) / output.name
            report = quantize_file(source, made, feeds, kept, progress)
            if report.share_of_flops < budget.least_share:
                raise _too_little(budget, report.share_of_flops, count)
            reached = distance(budget.measure, plan.reference, _run(made, trial))
            if reached <= budget.limit:
                for file in Path(scratch).iterdir():
                    file.replace(output.parent / file.name)
                break
        if attempt == TRIES - 1 or count == len(plan.order):
            raise _missed(budget, reached, count, len(plan.order))
        count = min(len(plan.order), max(count + 1, round(count * GROWTH)))
    return SearchReport(
        budget=budget,
        all_quantized=plan.all_quantized,
        reached=reached,
        seconds_all=plan.seconds_all,
        choices=tuple(
            Choice(entry.name, entry.gain, entry.cost, place < count)
            for place, entry in enumerate(plan.order)
        ),
        quantize=report,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    members: tuple[str, ...]
    gain: float
    cost: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """order: candidates, most worth keeping first, of which `count` are kept; reference: the unquantised outputs."""

    order: tuple[_Entry, ...]
    count: int
    all_quantized: float
    seconds_all: float
    reference: list[dict[str, torch.Tensor]]


def _plan(
    source: str | Path,
    feeds: Feeds,
    trial: Feeds,
    options: QuantizeOptions,
    budget: Budget,
    roofline: Roofline,
    progress: Progress,
) -> _Plan:
    """Everything that needs the switchable graph, which is gone when the file is written."""
    board = Switchboard(load_model(source), options)
    if not board.candidates:
        return _Plan((), 0, 0.0, 0.0, board.outputs(trial, None))
    board.calibrate(feeds, ir.DataType.FLOAT, progress)
    reference = board.outputs(trial, None)
    gains = _gains(board, trial, reference, budget, progress)
    costs = {
        x: roofline.seconds(x, "fp16") - roofline.seconds(x, options.format)
        for x in board.candidates
    }
    order = sorted(board.candidates, key=lambda x: -_worth(gains[x], costs[x], budget.order))

    def measured(count: int) -> float:
        progress(Step("search", detail=f"{count} of {len(order)} linears kept"))
        found = board.outputs(trial, order[:count])
        return distance(budget.measure, reference, found)

    worst = measured(0)
    return _Plan(
        order=tuple(_Entry(x.name, board.members[x], gains[x], costs[x]) for x in order),
        count=0 if worst <= budget.limit else _fewest(measured, len(order), budget),
        all_quantized=worst,
        seconds_all=sum(roofline.seconds(x, options.format) for x in board.candidates),
        reference=reference,
    )


def _gains(
    board: Switchboard,
    trial: Feeds,
    reference: Sequence[Outputs],
    budget: Budget,
    progress: Progress,
) -> dict[Linear, float]:
    """What each linear alone does to the measure."""
    found = {}
    total = len(board.candidates)
    for number, (linear, outputs) in enumerate(board.alone(trial)):
        progress(Step("sensitivity", number, total, linear.name))
        found[linear] = distance(budget.measure, reference, outputs)
    progress(Step("sensitivity", total, total))
    return found


def _worth(gain: float, cost: float, order: Order) -> float:
    """What a linear's place in the list follows from; one that saves no time is the first to stay high."""
    if order == "fewest":
        return gain
    return gain / cost if cost > 0 else float("inf")


def _fewest(measured: Callable[[int], float], most: int, budget: Budget) -> int:
    """The shortest prefix of the order that meets the budget."""
    low, high = 0, most  # low misses, high is believed to hold: nothing is quantised there
    while high - low > 1:
        middle = (low + high) // 2
        if measured(middle) <= budget.limit:
            high = middle
        else:
            low = middle
    return high


def _run(model: Path, feeds: Feeds) -> list[Outputs]:
    evaluator = TypedEvaluator(model)
    return [evaluator.run(feed).outputs for feed in feeds]


def _folder(output: Path) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    return output.parent


def _too_little(budget: Budget, share: float, count: int) -> GateError:
    return GateError(
        f"a quantised graph within {budget.measure} {budget.limit:g}",
        found=f"it needs {count} linears kept high, which leaves {share:.1%} of the FLOPs quantised, "
        f"below {budget.least_share:.1%}",
        fix="Raise the budget or lower the share, or use rounding 'gptq' and more calibration text",
    )


def _missed(budget: Budget, reached: float, count: int, most: int) -> GateError:
    return GateError(
        f"a quantised graph within {budget.measure} {budget.limit:g}",
        found=f"{budget.measure} {reached:.3g} with {count} of {most} linears kept high",
        fix="Raise the budget, or use rounding 'gptq' and more calibration text",
    )
