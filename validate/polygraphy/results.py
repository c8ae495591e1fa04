"""Polygraphy's saved results, judged against a bundle's float64 reference by our rules and the recipe's limits.

polygraphy run ... --load-inputs polygraphy/inputs.json --save-outputs RESULTS.json
judge_results(bundle, load_run_results(RESULTS.json)[0], precision) -> JudgedResults

Language limits (KL divergence, greedy tokens, perplexity) count the recipe's own text. Where all of that is among the
golden cases they are applied as `build` applies them; where it is not, each golden case is held to its own limits, which
language_limits.py derives and polygraphy/checks.py applies too.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from ...core.bundle import Bundle
from ...core.dtypes import dtype_from_name
from ...core.errors import ArtefactError, UsageError
from ...core.manifest import ErrorRecord, GateRecord
from ..compare import Rules, compare
from ..gates import Measured, gate, judge_gates
from ..language import LanguageTally
from ..limits import Limits
from ..measures import Measures, measure_elements
from ..runners import tensor_from_numpy
from ..spread import Spread, pool
from ..tensor_files import RunnerOutputs, load_run_results, load_tensors
from .checks import MEASURES, judges, language_measures
from .language_limits import sets_language_limits
from .write import FOLDER, INPUTS, LIMITS, OUTPUTS

INNER = ("max_layer_error_over_floor", "max_overflows")  # limits on values that results do not show


@dataclass(frozen=True, slots=True)
class JudgedResults:
    """The verdict on one runner's results.

    findings: broken rules, by case. gates: what decides. measures: case -> output -> spread of its errors. notes: by
    which rule language is judged, and which limits of the recipe outputs cannot show.
    """

    runner: str
    precision: str
    passed: bool
    findings: tuple[str, ...]
    errors: tuple[ErrorRecord, ...]
    gates: tuple[GateRecord, ...]
    measures: Mapping[str, Mapping[str, Measures]]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "runner": self.runner,
            "precision": self.precision,
            "passed": self.passed,
            "findings": list(self.findings),
            "errors": [error.model_dump(mode="json") for error in self.errors],
            "gates": [gate.model_dump(mode="json") for gate in self.gates],
            "measures": {
                case: {name: found.as_dict() for name, found in outputs.items()}
                for case, outputs in self.measures.items()
            },
            "notes": list(self.notes),
        }


def judge_results(
    bundle: Bundle, results: RunnerOutputs, precision: str | None = None
) -> JudgedResults:
    """Judge the outputs that one runner gave for the bundle's polygraphy/inputs.json, one iteration a case.

    precision: which of the bundle's graphs ran, None for the first. Raises ArtefactError for a bundle without a whole
    polygraphy folder, UsageError where the number of iterations differs from that of the bundle's cases, and for
    outputs that break no rule but that no limit of the recipe judges.
    """
    variant = bundle.manifest.variant(precision)
    yardstick = _read_yardstick(bundle, variant.precision)
    names = list(yardstick.truth)
    if len(results.outputs) != len(names):
        raise UsageError(
            f"judge the results of {results.runner}",
            found=f"{len(results.outputs)} iterations, the bundle has {len(names)} cases",
            fix=f"Run with --load-inputs {bundle.path}/{FOLDER}/inputs.json",
        )
    limits, vocabulary = yardstick.limits, yardstick.vocabulary
    rules = Rules(
        greedy=frozenset(() if vocabulary is None else (vocabulary,)),
        slack=limits.max_error_over_floor,
    )
    findings: list[str] = []
    errors: list[ErrorRecord] = []
    spreads: dict[str, list[tuple[Spread, Spread]]] = {}
    measures: dict[str, dict[str, Measures]] = {}
    ulps_of = dtype_from_name(variant.computes)
    language = LanguageTally()
    by_case: list[GateRecord] = []
    for case, given in zip(names, results.outputs, strict=True):
        truth, floor = yardstick.truth[case], yardstick.floors[case]
        actual = {name: tensor_from_numpy(array) for name, array in given.items()}
        found = compare(variant.outputs, truth, actual, floor, rules, case=case)
        findings += [f"{case}: {finding}" for finding in found.findings]
        errors += found.errors
        measures[case] = {}
        for name, spread in found.spreads.items():
            spreads.setdefault(name, []).append((spread, floor[name]))
            measures[case][name] = measure_elements(truth[name], actual[name], dtype=ulps_of.torch)
        if yardstick.by_case and vocabulary is not None and vocabulary in found.spreads:
            pair = truth[vocabulary], actual[vocabulary]
            if not yardstick.whole_text:
                by_case += _case_gates(case, yardstick, *pair)
            elif case in yardstick.language_cases:
                language.add(*pair, yardstick.texts.get(case), case=case)
    if not findings:
        _check_judged(variant.precision, yardstick, spreads)
    score = language.score()
    gates = judge_gates(
        Measured(
            findings=len(findings),
            spreads={
                name: (pool(s for s, _ in pairs), pool(f for _, f in pairs))
                for name, pairs in spreads.items()
            },
            errors=errors,
            perplexity=score.perplexity_ratio if score else None,
            reference_perplexity=1.0,
            kl_divergence=score.kl_divergence if score else None,
            token_agreement=score.agreement if score else None,
        ),
        limits,
    )
    gates = (*gates, *by_case)
    return JudgedResults(
        runner=results.runner,
        precision=variant.precision,
        passed=all(gate.passed for gate in gates),
        findings=tuple(findings),
        errors=tuple(errors),
        gates=gates,
        measures=measures,
        notes=_notes(yardstick),
    )


def _case_gates(
    case: str, yardstick: "_Yardstick", truth: torch.Tensor, actual: torch.Tensor
) -> list[GateRecord]:
    """One case held to its own language limits, by the function that travels with the bundle."""
    limits, ids = yardstick.by_case[case], yardstick.texts.get(case)
    found = language_measures(
        truth.numpy(), actual.double().numpy(), None if ids is None else ids.numpy()
    )
    return [
        gate(f"{case}: {MEASURES[key][0]}", value, MEASURES[key][1], limits[key])
        for key, value in found.items()
        if limits[key] is not None
    ]


def _check_judged(precision: str, yardstick: "_Yardstick", outputs: Iterable[str]) -> None:
    """Raise UsageError for an output that no limit judges: noise would pass."""
    limits = yardstick.limits
    pooled = yardstick.whole_text and (
        limits.max_kl_divergence is not None or limits.min_token_agreement is not None
    )
    silent = [
        name
        for name in outputs
        if not (judges(yardstick.outputs[name]) or (pooled and name == yardstick.vocabulary))
    ]
    if not silent:
        return
    known = [item.name for item in fields(limits) if getattr(limits, item.name) is not None]
    raise UsageError(
        f"judge {', '.join(silent)} of {precision}",
        found=f"no limit that applies to golden outputs; the recipe sets {', '.join(known) or 'none'}",
        fix="Set max_error_over_floor, min_cosine or, for logits, max_kl_divergence in [validate.limits]",
    )


def _notes(yardstick: "_Yardstick") -> tuple[str, ...]:
    limits, notes = yardstick.limits, []
    if yardstick.vocabulary is not None and sets_language_limits(limits):
        if yardstick.whole_text:
            notes.append("language: the recipe's limits, on the cases that `build` counts")
        else:
            notes.append(
                "language: the recipe's text is not among the golden cases. Each case may lose what the bundle's own graph "
                "loses on it, what the recipe leaves above that graph's number on the text, and two standard errors"
            )
    silent = [name for name in INNER if getattr(limits, name) is not None]
    if limits.max_perplexity_ratio is not None and not yardstick.texts:
        silent.append("max_perplexity_ratio")
    if silent:
        notes.append(f"outputs do not show what {', '.join(silent)} limits")
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class _Yardstick:
    """What the folder says of one variant: case -> output -> truth, and -> floor; the recipe's limits.

    outputs: what checks.py holds each to. by_case: case -> its language limits. texts: case -> token ids, of texts.
    language_cases: those that the recipe's language limits count.
    """

    truth: Mapping[str, Mapping[str, torch.Tensor]]
    floors: Mapping[str, Mapping[str, Spread]]
    limits: Limits
    vocabulary: str | None
    outputs: Mapping[str, Mapping[str, Any]]
    by_case: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, torch.Tensor]
    language_cases: frozenset[str]

    @property
    def whole_text(self) -> bool:
        """Whether the recipe's language limits can be applied as they are."""
        return self.language_cases <= self.truth.keys()


def _read_yardstick(bundle: Bundle, precision: str) -> _Yardstick:
    path = bundle.file(f"{FOLDER}/{LIMITS}")
    runs = load_run_results(bundle.file(f"{FOLDER}/{OUTPUTS}"))
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        entry = body["variants"][precision]
        ((_, outputs),) = [(run.runner, run.outputs) for run in runs]
        truth = {
            case: {name: tensor_from_numpy(array) for name, array in expected.items()}
            for case, expected in zip(body["cases"], outputs, strict=True)
        }
        floors = {
            case: {name: _spread(sums) for name, sums in entry["floors"][case].items()}
            for case in truth
        }
        vocabulary = body["vocabulary"]
        by_digest = entry["outputs"][vocabulary]["language"] if vocabulary is not None else {}
        by_case = {language["case"]: language for language in by_digest.values()}
        inputs = load_tensors(bundle.file(f"{FOLDER}/{INPUTS}"))
        texts = {
            case: tensor_from_numpy(next(iter(inputs[language["text"]].values())))
            for case, language in by_case.items()
            if language["text"] is not None
        }
        return _Yardstick(
            truth=truth,
            floors=floors,
            limits=Limits(**entry["limits"]),
            vocabulary=vocabulary,
            outputs=entry["outputs"],
            by_case=by_case,
            texts=texts,
            language_cases=frozenset(body["language_cases"]),
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        found = f"it does not fit ({error.__class__.__name__}: {error})"
        raise ArtefactError(f"limits {path}", found=found, fix="Build the bundle again") from None


def _spread(sums: Mapping[str, Any]) -> Spread:
    """A floor from the sums that write.py kept; null is a number that was not finite."""
    known: dict[str, Any] = {
        key: math.inf if value is None else value for key, value in sums.items()
    }
    return Spread(
        **known,
        truth_square=math.nan,
        actual_square=math.nan,
        product=math.nan,
        worst_index=(),
        worst_actual=math.nan,
        worst_expected=math.nan,
    )
