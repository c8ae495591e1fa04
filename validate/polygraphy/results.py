"""Polygraphy's saved results, judged against a bundle's float64 reference by our rules and the recipe's limits.

polygraphy run ... --load-inputs polygraphy/inputs.json --save-outputs RESULTS.json
judge_results(bundle, load_run_results(RESULTS.json)[0], precision) -> JudgedResults
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...core.bundle import Bundle
from ...core.dtypes import dtype_from_name
from ...core.errors import ArtefactError, UsageError
from ...core.manifest import ErrorRecord, GateRecord
from ..compare import Rules, compare
from ..gates import Measured, judge_gates
from ..limits import Limits
from ..measures import Measures, measure_elements
from ..runners import tensor_from_numpy
from ..spread import Spread, pool
from ..tensor_files import RunnerOutputs, load_run_results
from .write import FOLDER, LIMITS, OUTPUTS


@dataclass(frozen=True, slots=True)
class JudgedResults:
    """The verdict on one runner's results.

    findings: broken rules, by case. gates: what decides. measures: case -> output -> spread of its errors.
    """

    runner: str
    precision: str
    passed: bool
    findings: tuple[str, ...]
    errors: tuple[ErrorRecord, ...]
    gates: tuple[GateRecord, ...]
    measures: Mapping[str, Mapping[str, Measures]]

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
        }


def judge_results(
    bundle: Bundle, results: RunnerOutputs, precision: str | None = None
) -> JudgedResults:
    """Judge the outputs that one runner gave for the bundle's polygraphy/inputs.json, one iteration a case.

    precision: which of the bundle's graphs ran, None for the first. Without a limit max_error_over_floor
    only the rules decide. Raises ArtefactError for a bundle without a whole polygraphy folder, UsageError
    where the number of iterations differs from that of the bundle's cases.
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
    gates = judge_gates(
        Measured(
            findings=len(findings),
            spreads={
                name: (pool(s for s, _ in pairs), pool(f for _, f in pairs))
                for name, pairs in spreads.items()
            },
            errors=errors,
        ),
        limits,
    )
    return JudgedResults(
        runner=results.runner,
        precision=variant.precision,
        passed=all(gate.passed for gate in gates),
        findings=tuple(findings),
        errors=tuple(errors),
        gates=gates,
        measures=measures,
    )


@dataclass(frozen=True, slots=True)
class _Yardstick:
    """What the folder says of one variant: case -> output -> truth, and -> floor; the recipe's limits."""

    truth: Mapping[str, Mapping[str, torch.Tensor]]
    floors: Mapping[str, Mapping[str, Spread]]
    limits: Limits
    vocabulary: str | None


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
        return _Yardstick(truth, floors, Limits(**entry["limits"]), body["vocabulary"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
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
