"""Trial: what one runner shows, added up case by case, and the verdict that follows from it.

Trial.see(case, ran) for every case -> Trial.verdict(limits) -> VerdictRecord
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..core.dtypes import DType
from ..core.evidence import ElementsRecord, GreedyRecord
from ..core.manifest import ErrorRecord, TensorRecord, VerdictRecord
from ..graph.evaluator import Overflow
from .compare import Rules, compare
from .gates import Measured, judge_gates
from .inputs import Case
from .language import LanguageScore, LanguageTally
from .limits import Limits
from .reference import Floor, Truth, tally
from .runners import Ran
from .seeds import seeds_records
from .spread import Spread, pool, row_error
from .ulps import ElementTally
from .underflow import UnderflowTally

PEAKS = 8  # values listed with the largest magnitudes


@dataclass(slots=True)
class Trial:
    """Collects the evidence about one runner of one variant.

    precision: what the variant computes in, the widest type where it is quantised; outputs: what the graph declares; slack: how many floors one element may be off before another greedy
    token counts as changed (None: not judged); closely: look at single elements too.
    """

    truth: Truth
    floor: Floor
    precision: DType
    outputs: tuple[TensorRecord, ...]
    slack: float | None
    closely: bool = True
    findings: list[str] = field(default_factory=list)
    errors: list[ErrorRecord] = field(default_factory=list)
    spreads: dict[str, dict[str, Spread]] = field(default_factory=dict)  # case -> output
    elements: dict[str, ElementTally] = field(default_factory=dict)
    layers: dict[str, tuple[float, float]] = field(default_factory=dict)
    overflows: dict[tuple[str, str, str], Overflow] = field(default_factory=dict)
    underflows: UnderflowTally = field(default_factory=UnderflowTally)
    largest: dict[str, float] = field(default_factory=dict)
    language: LanguageTally = field(default_factory=LanguageTally)

    def see(self, case: Case, ran: Ran) -> None:
        """Compare one case's outputs and add up what was found; layers are those of the first case."""
        vocabulary = self.truth.vocabulary
        rules = Rules(
            greedy=frozenset(() if vocabulary is None else (vocabulary,)), slack=self.slack
        )
        expected, base = self.truth.results[case.name], self.floor.spreads[case.name]
        result = compare(self.outputs, expected, ran.outputs, base, rules, case=case.name)
        self.findings += [f"{case.name}: {finding}" for finding in result.findings]
        self.errors += result.errors
        self.spreads[case.name] = dict(result.spreads)
        if self.closely:
            for name in result.spreads:
                tally_of = self.elements.setdefault(name, ElementTally(self.precision))
                tally_of.add(case.name, expected[name], ran.outputs[name])
        tally(self.language, self.truth, case, ran.outputs.get(vocabulary or ""))
        if case is self.truth.cases[0]:
            self.layers = _layer_errors(self.truth, self.floor, ran)
        self._see_range(ran)

    def _see_range(self, ran: Ran) -> None:
        for event in ran.overflows:
            key = (event.value, event.node, event.kind)
            before = self.overflows.get(key)
            if before is not None:
                count, largest = before.count + event.count, max(before.largest, event.largest)
                event = replace(event, count=count, largest=largest)
            self.overflows[key] = event
        self.underflows.add(ran.underflows)
        for name, size in ran.largest.items():
            self.largest[name] = max(self.largest.get(name, 0.0), size)

    def _yardstick(self) -> tuple[str, ...]:
        if self.floor.dtype is self.precision:
            return ()
        return (
            f"PyTorch in {self.precision.value} is not finite on these inputs: "
            f"the floor is what it loses in {self.floor.dtype.value}.",
        )

    def _by_output(self) -> dict[str, list[Spread]]:
        found: dict[str, list[Spread]] = {}
        for by_output in self.spreads.values():
            for name, spread in by_output.items():
                found.setdefault(name, []).append(spread)
        return found

    def _repeats(self) -> tuple[list[dict[str, Spread]], list[Mapping[str, Spread]]]:
        """Spreads and floors of the cases that differ in their seed alone."""
        names = [c.name for c in self.truth.cases if c.repeats and c.name in self.spreads]
        return [self.spreads[n] for n in names], [self.floor.spreads[n] for n in names]

    def _elements(self) -> tuple[ElementsRecord, ...]:
        same = self.floor.dtype is self.precision
        return tuple(
            tally_of.record(name, self.floor.ulps.get(name, {}) if same else {})
            for name, tally_of in self.elements.items()
        )

    def verdict(self, runner: str, limits: Limits, *, inner: bool) -> VerdictRecord:
        """The judged verdict. inner: whether the runner shows inner values, so that their limits apply."""
        score, base = self.language.score(), self.floor.language
        events = self.overflows.values()
        gates = judge_gates(
            Measured(
                findings=len(self.findings),
                spreads={n: (pool(s), self.floor.pooled(n)) for n, s in self._by_output().items()},
                errors=self.errors,
                layers=self.layers if inner else None,
                perplexity=score.perplexity if score else None,
                reference_perplexity=self.truth.perplexity,
                kl_divergence=score.kl_divergence if score else None,
                token_agreement=score.agreement if score else None,
                overflows=len({e.value for e in events if e.kind != "saturated"})
                if inner
                else None,
            ),
            limits,
        )
        names = sorted(self.largest, key=lambda name: -self.largest[name])
        return VerdictRecord(
            runner=runner,
            passed=all(gate.passed for gate in gates),
            outputs=tuple(self.errors),
            gates=gates,
            layer_names=tuple(self.layers),
            layer_errors=tuple(error for error, _ in self.layers.values()),
            layer_floors=tuple(floor for _, floor in self.layers.values()),
            perplexity=score.perplexity if score else None,
            reference_perplexity=self.truth.perplexity,
            token_agreement=score.agreement if score else None,
            kl_divergence=score.kl_divergence if score else None,
            kl_interval=score.kl_interval if score else None,
            perplexity_ratio=score.perplexity_ratio if score else None,
            perplexity_ratio_interval=score.ratio_interval if score else None,
            top5_agreement=score.top if score else None,
            floor_dtype=self.floor.dtype.value,
            floor_perplexity=base.perplexity if base else None,
            floor_token_agreement=base.agreement if base else None,
            floor_kl_divergence=base.kl_divergence if base else None,
            greedy=_departure(score),
            floor_greedy=_departure(base),
            elements=self._elements(),
            seeds=seeds_records(*self._repeats()),
            overflow=tuple(overflow_line(event) for event in events),
            underflow=self.underflows.listed(),
            underflow_by_layer=self.underflows.by_layer(),
            peaks={name: self.largest[name] for name in names[:PEAKS]},
            notes=(*self._yardstick(), *self.findings),
        )


def _departure(score: LanguageScore | None) -> GreedyRecord | None:
    """Where the greedy tokens first part, as the manifest keeps it."""
    if score is None or score.first is None:
        return None
    case, at = score.first
    return GreedyRecord(
        case=case,
        position=at.position,
        expected=at.expected,
        actual=at.actual,
        margin=at.margin,
    )


def overflow_line(event: Overflow) -> str:
    """One overflow as a sentence."""
    what = {
        "range": "beyond the range of its dtype",
        "saturated": "clipped to the largest number of its dtype",
        "infinite": "infinite from finite inputs",
        "nan": "NaN from numbers",
    }[event.kind]
    return (
        f"{event.value}: {event.count} elements {what} (largest {event.largest:.4g}, {event.node})"
    )


def _layer_errors(truth: Truth, floor: Floor, ran: Ran) -> dict[str, tuple[float, float]]:
    """Relative error and floor of each layer output that the runner kept.

    A lone block's output is the graph's only output and may carry no layer name.
    """
    kept = dict(ran.kept)
    if len(truth.layers) == 1 and not kept and len(ran.outputs) == 1:
        kept = dict(zip(truth.layers, ran.outputs.values(), strict=True))
    return {
        name: (row_error(truth.layers[name], kept[name]), floor.layers[name])
        for name in truth.layers
        if name in kept and kept[name].shape == truth.layers[name].shape
    }
