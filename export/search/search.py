"""Find the linears to leave in 16 bits so that the quantised graph stays within a budget.

calibrate -> the shortest list that suffices (ranking.py) -> file -> measured again
"""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...core.errors import GateError, UsageError
from ...core.progress import Progress, silent
from ...graph.evaluator import TypedEvaluator
from ...graph.output import require_unread
from ..quantize.options import QuantizeOptions
from ..quantize.quantize import quantize_file
from ..quantize.report import QuantizeReport
from .cost import Roofline
from .judge import LABELS
from .measures import Measure, Outputs
from .ranking import Budget, ranking
from .rounded import Feeds

GROWTH = 1.15  # how many more linears are kept where the written file misses the budget
TRIES = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """One linear. gain: of the measure when it stays high, alone; cost: roofline seconds; kept: the outcome.

    measured: whether the gain was measured, or estimated from gradients.
    """

    name: str
    gain: float
    cost: float
    kept: bool
    measured: bool


@dataclass(frozen=True, slots=True)
class SearchReport:
    """choices: every candidate, most worth keeping first. all_quantized, reached: the budget's measure before and after.

    ranked_by: the measure of the gains, with ranked_all_quantized and ranked_reached by it. standard_error: of `reached`,
    where it is a perplexity's ratio. seconds_all: roofline seconds of all linears when every candidate is quantised.
    """

    budget: Budget
    all_quantized: float
    reached: float
    standard_error: float | None
    ranked_by: Measure
    ranked_all_quantized: float
    ranked_reached: float
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
        """The budget and what was reached, then each linear that stays high: what it gains and what it costs."""
        ranked = "KL" if self.ranked_by == "kl" else "error"
        before, after = f"{self.all_quantized:.5g}", f"{self.reached:.5g}"
        if self.standard_error is not None:
            after += f" with standard error {self.standard_error:.2g}"
        if self.ranked_by != self.budget.measure:
            before += f" ({ranked} {self.ranked_all_quantized:.4g})"
            after += f" ({ranked} {self.ranked_reached:.4g})"
        return (
            f"budget: {LABELS[self.budget.measure]} at most {self.budget.limit:g}; {before} with every linear quantised, "
            f"{after} with {len(self.kept)} kept high",
            *(
                f"{c.name}: {base}, gains {'' if c.measured else 'about '}{c.gain / self.ranked_all_quantized:.2%} of the "
                f"{ranked} that all cost together, costs {c.cost / self.seconds_all:.2%} time"
                for c in self.kept
            ),
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
    arguments give the same file.

    More linears are kept where the written file misses the limit, so it always meets it as measured. Perplexity is not
    monotone in the number kept: fewer, or others, may meet it too, and so may a graph that owes it to chance, which the
    standard error tells. Raises GateError where the budget is missed with every candidate kept high or the least
    share is not reached, UsageError for kv_cache, and what Judge and quantize_file raise; nothing is left then.
    """
    if options.kv_cache:
        raise UsageError(
            "search within a budget, with kv_cache",
            found="the quantised graph takes FP8 caches, which the trial's inputs are not",
            fix="Search without kv_cache, then quantise with kv_cache and the linears that it kept",
        )
    require_unread(source, output)
    plan = ranking(source, feeds, trial, options, budget, roofline, progress)
    output, count = Path(output), plan.count
    for attempt in range(TRIES):
        high = [name for entry in plan.order[:count] for name in entry.members]
        kept = replace(options, keep=tuple(dict.fromkeys((*options.keep, *high))))
        with tempfile.TemporaryDirectory(prefix=".search.", dir=_folder(output)) as scratch:
            made = Path(scratch) / output.name
            report = quantize_file(source, made, feeds, kept, progress)
            if report.share_of_flops < budget.least_share:
                raise _too_little(budget, report.share_of_flops, count)
            reached = plan.judge.read(_run(made, trial))
            if reached.value <= budget.limit:
                for file in Path(scratch).iterdir():
                    file.replace(output.parent / file.name)
                break
        if attempt == TRIES - 1 or count == len(plan.order):
            raise _missed(budget, reached.value, count, len(plan.order))
        count = min(len(plan.order), max(count + 1, round(count * GROWTH)))
    return SearchReport(
        budget=budget,
        all_quantized=plan.all_quantized.value,
        reached=reached.value,
        standard_error=reached.standard_error,
        ranked_by=plan.judge.ranked_by,
        ranked_all_quantized=plan.all_quantized.ranked,
        ranked_reached=reached.ranked,
        seconds_all=plan.seconds_all,
        choices=tuple(
            Choice(entry.name, entry.gain, entry.cost, place < count, entry.measured)
            for place, entry in enumerate(plan.order)
        ),
        quantize=report,
    )


def _run(model: Path, feeds: Feeds) -> list[Outputs]:
    evaluator = TypedEvaluator(model)
    return [evaluator.run(feed).outputs for feed in feeds]


def _folder(output: Path) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    return output.parent


def _too_little(budget: Budget, share: float, count: int) -> GateError:
    return GateError(
        f"a quantised graph within {LABELS[budget.measure]} {budget.limit:g}",
        found=f"it needs {count} linears kept high, which leaves {share:.1%} of the FLOPs quantised, "
        f"below {budget.least_share:.1%}",
        fix="Raise the budget or lower the share, or use rounding 'gptq' and more calibration text",
    )


def _missed(budget: Budget, reached: float, count: int, most: int) -> GateError:
    return GateError(
        f"a quantised graph within {LABELS[budget.measure]} {budget.limit:g}",
        found=f"{LABELS[budget.measure]} {reached:.4g} with {count} of {most} linears kept high",
        fix="Raise the budget, or use rounding 'gptq' and more calibration text",
    )
