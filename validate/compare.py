"""Compare a candidate's outputs with the float64 truth, by explicit rules and without a tolerance.

    declared outputs + truth + candidate + noise floor -> what is broken (Finding), how far it lies (Spread)

A Finding fails whatever the limits are: a missing, extra or empty output, another dtype or shape, a number
that is not finite and was not declared, zeros for a result, an integer that differs beyond a tie, a greedy
token that noise cannot explain. The errors themselves are judged in gates.py, in units of the noise floor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..core.dtypes import dtype_from_name, dtype_from_torch
from ..core.errors import UsageError
from ..core.manifest import ErrorRecord, TensorRecord
from .language import greedy_agreement
from .spread import Spread, error_record, measure


@dataclass(frozen=True, slots=True)
class Rules:
    """What a comparison may take for granted; nothing by default.

    infinities: outputs that may hold infinities (a mask), where the truth holds them with the same sign.
    greedy: float outputs whose last axis is a vocabulary, so that their largest element is an answer.
    ties: integer output -> the float output whose last axis it indexes.
    slack: how many times the floor's largest error one element may be off. Two elements of the truth that
    lie closer than twice that are a tie: their order says nothing. None: greedy tokens are not judged, and
    only equal logits are ties.
    """

    infinities: frozenset[str] = frozenset()
    greedy: frozenset[str] = frozenset()
    ties: Mapping[str, str] = field(default_factory=dict)
    slack: float | None = None

    def tie_gap(self, floor: Spread) -> float:
        """The distance below which two elements may change places: each is off by slack floors at most."""
        return 0.0 if self.slack is None else 2 * self.slack * floor.max_abs


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule of one output."""

    output: str
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.output}: {self.rule}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """spreads and errors cover the float outputs that could be compared element by element."""

    findings: tuple[Finding, ...]
    errors: tuple[ErrorRecord, ...]
    spreads: Mapping[str, Spread]


def compare(
    declared: Sequence[TensorRecord],
    truth: Mapping[str, torch.Tensor],
    candidate: Mapping[str, torch.Tensor],
    floor: Mapping[str, Spread],
    rules: Rules,
    *,
    case: str = "",
) -> Comparison:
    """Judge `candidate` output by output.

    declared: name, dtype and dims that each output must have. truth: float64 (integers as they are).
    floor: what PyTorch in the variant's dtype loses, for each float output (spread.measure).
    Raises UsageError when the truth or the floor lacks an output: such a comparison passes by accident.
    """
    names = {record.name for record in declared}
    findings = [Finding(n, "extra output", "not declared") for n in candidate if n not in names]
    errors, spreads = [], {}
    for record in declared:
        name, floating = record.name, dtype_from_name(record.dtype).floating
        if name not in truth or (floating and name not in floor):
            what = "there is no noise floor for it" if name in truth else "there is no truth for it"
            raise UsageError(f"compare output {name!r}", found=what, fix="Compute it first")
        form = _form(record, truth[name], candidate.get(name))
        if form:
            findings.append(form)
        elif floating:
            spread = measure(truth[name], candidate[name], infinities=name in rules.infinities)
            spreads[name] = spread
            errors.append(error_record(name, spread, floor[name], case=case))
            findings += _numbers(name, truth[name], candidate[name], spread, floor[name])
            if name in rules.greedy and rules.slack is not None:
                gap = rules.tie_gap(floor[name])
                findings += _greedy(name, truth[name], candidate[name], gap)
        else:
            findings += _integers(name, truth, candidate[name], floor, rules)
    return Comparison(tuple(findings), tuple(errors), spreads)


def _form(record: TensorRecord, truth: torch.Tensor, actual: torch.Tensor | None) -> Finding | None:
    """What keeps the two from being compared element by element, if anything."""
    name = record.name
    if actual is None:
        return Finding(name, "missing output", "declared, but not delivered")
    if actual.dtype != dtype_from_name(record.dtype).torch:
        return Finding(name, "dtype", f"{_dtype_name(actual.dtype)}, declared as {record.dtype}")
    shape = tuple(actual.shape)
    if shape != tuple(truth.shape):
        return Finding(name, "shape", f"{shape}, but the truth has {tuple(truth.shape)}")
    fits = len(shape) == len(record.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(record.dims, shape, strict=True)
    )
    if not fits:
        return Finding(name, "shape", f"{shape}, declared as {record.dims}")
    if not actual.numel():
        return Finding(name, "empty", f"shape {shape} holds no number")
    return None


def _dtype_name(dtype: torch.dtype) -> str:
    try:
        return dtype_from_torch(dtype).value
    except UsageError:
        return str(dtype).removeprefix("torch.")


def _numbers(
    name: str, truth: torch.Tensor, actual: torch.Tensor, spread: Spread, floor: Spread
) -> list[Finding]:
    """Numbers that are not finite on any side, and a result that is zero all over."""
    findings = []
    at = list(spread.worst_index)
    if spread.truth_nonfinite:
        detail = f"{spread.truth_nonfinite} elements of the truth: agreement would prove nothing"
        findings.append(Finding(name, "truth not finite", detail))
    if floor.nonfinite:
        detail = f"{floor.nonfinite} elements of PyTorch's own result in this dtype: no yardstick"
        findings.append(Finding(name, "floor not finite", detail))
    if spread.nonfinite:
        detail = f"{spread.nonfinite} elements, the first is {spread.worst_actual} at {at}"
        findings.append(Finding(name, "not finite", detail))
    if truth.any() and not actual.any():
        detail = f"the truth reaches {spread.worst_expected:.4g} at {at}"
        findings.append(Finding(name, "all zero", detail))
    return findings


def _greedy(name: str, truth: torch.Tensor, actual: torch.Tensor, gap: float) -> list[Finding]:
    """Positions whose largest element is another one, by more than noise explains."""
    greedy = greedy_agreement(truth, actual, gap=gap)
    if not greedy.changed:
        return []
    detail = (
        f"changed at {greedy.changed} of {greedy.positions} positions; at {list(greedy.worst_position)} "
        f"the truth puts it {greedy.worst_margin:.4g} below its own, noise explains {gap:.4g}"
    )
    return [Finding(name, "greedy token", detail)]


def _integers(
    name: str,
    truth: Mapping[str, torch.Tensor],
    actual: torch.Tensor,
    floor: Mapping[str, Spread],
    rules: Rules,
) -> list[Finding]:
    """Integers are exact, except indices of two elements that lie closer than noise."""
    expected = truth[name]
    differs = [tuple(at.tolist()) for at in (expected != actual).nonzero()]
    source = rules.ties.get(name)
    if source is not None:
        gap = rules.tie_gap(floor[source])
        differs = [
            at
            for at in differs
            if not _is_tie(truth[source][at], int(expected[at]), int(actual[at]), gap)
        ]
    if not differs:
        return []
    first = differs[0]
    detail = (
        f"{len(differs)} of {expected.numel()} differ, the first at {list(first)}: "
        f"{actual[first].item()}, not {expected[first].item()}"
    )
    return [Finding(name, "integers", detail)]


def _is_tie(row: torch.Tensor, one: int, other: int, gap: float) -> bool:
    """Whether both indices exist in the row and their elements lie within `gap`."""
    inside = 0 <= one < len(row) and 0 <= other < len(row)
    return inside and bool((row[one] - row[other]).abs() <= gap)
