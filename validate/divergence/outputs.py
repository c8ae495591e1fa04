"""What both sides must show: the declared outputs, and every array of a file, by the rules of validate/compare.py.

A value between them may lack a partner and is then only counted; an output without one is a Finding. The noise floor of
a float is a roundoff of each element, since neither side's own floor was measured.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...core.dtypes import dtype_from_torch
from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ..compare import Comparison, Finding, Rules, compare
from ..spread import Spread, measure
from .sides import GraphSide, SavedSide, Side

Tensors = Mapping[str, torch.Tensor]
LOGITS = "logits"  # what token ids are the largest elements of
TIE = 8.0  # floors that each of two logits may be off
FP32 = 2.0**-24  # its unit roundoff
SUMS = 2.0**-19  # least floor of what is computed in fp32 or less: long sums lose many roundings


def must_show(side: Side, inputs: Collection[str]) -> tuple[str, ...]:
    """Names that the other side may not lack. inputs: of the run; a file may hold them too."""
    if isinstance(side, GraphSide):
        return tuple(str(value.name) for value in side.model.graph.outputs)
    if isinstance(side, SavedSide):
        return tuple(name for name in side.values if name not in inputs)
    return tuple(getattr(side, "outputs", ()))


def compare_tensors(
    truth: Tensors, found: Tensors, unit: Callable[[torch.Tensor, torch.Tensor], float]
) -> Comparison:
    """Judge `found` by the names of `truth`: a name on one side only, other kinds, shapes, numbers that are not finite.

    unit: the unit roundoff that two float tensors are compared by. Floats may differ in their width, integers may not.
    The same infinities at the same places are equal.
    """
    findings: list[Finding] = []
    truths: dict[str, torch.Tensor] = {}
    values = {name: value for name, value in found.items() if name not in truth}
    declared, floors = [], {}
    for name, expected in truth.items():
        actual = found.get(name)
        if actual is not None and not _same_kind(expected, actual):
            detail = f"{_name(actual)}, the reference has {_name(expected)}"
            findings.append(Finding(name, "dtype", detail))
            continue
        truths[name] = _known(expected)
        if actual is not None:
            values[name] = _known(actual)
        dtype = (truths if actual is None else values)[name].dtype
        declared.append(
            TensorRecord(
                name=name, dtype=dtype_from_torch(dtype).value, dims=tuple(truths[name].shape)
            )
        )
        if dtype.is_floating_point:
            floors[name] = _floor(
                truths[name], unit(expected, expected if actual is None else actual)
            )
    rules = Rules(infinities=frozenset(truths), slack=TIE)
    ties = {
        name: LOGITS
        for name in truths.keys() & values.keys()
        if LOGITS in floors and _greedy_ids(truths, values, name, rules.tie_gap(floors[LOGITS]))
    }
    compared = compare(declared, truths, values, floors, replace(rules, ties=ties))
    return Comparison((*findings, *compared.findings), compared.errors, compared.spreads)


def _greedy_ids(truths: Tensors, values: Tensors, name: str, gap: float) -> bool:
    """Whether the integers that differ are, in the truth, indices of largest logits: others are no argmax, and exact."""
    ids, logits = truths[name], truths[LOGITS]
    if ids.is_floating_point() or not logits.ndim or not logits.numel():
        return False
    if not ids.shape == values[name].shape == logits.shape[:-1]:
        return False
    at = ids != values[name]
    rows, chosen = logits[at], ids[at].long()
    if not bool(((chosen >= 0) & (chosen < logits.shape[-1])).all()):
        return False
    behind = rows.amax(-1) - rows.gather(-1, chosen[:, None])[:, 0]
    return bool((behind <= gap).all())


def _floor(truth: torch.Tensor, unit: float) -> Spread:
    """Each element one roundoff off; of an empty tensor, which no rule lets pass, that of a zero."""
    wide = truth.double() if truth.numel() else torch.zeros(1, dtype=torch.float64)
    unit = unit if unit < FP32 else max(unit, SUMS)
    return measure(wide, wide * (1 + unit), infinities=True)


def _same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype or (one.is_floating_point() and other.is_floating_point())


def _name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _known(value: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type that compare.py takes: others become float64 or int64."""
    try:
        dtype_from_torch(value.dtype)
    except UsageError:
        return value.double() if value.is_floating_point() else value.long()
    return value.float() if value.is_floating_point() and value.dtype.itemsize == 1 else value


def real_pairs(value: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs along a last axis, others as they are."""
    return torch.view_as_real(value) if value.is_complex() else value


@dataclass(frozen=True, slots=True)
class Row:
    """One output by its name on each side, None where it has no partner. mapped: the walk judges it too."""

    reference: str | None
    candidate: str | None
    mapped: bool = False

    @property
    def name(self) -> str:
        """By which findings call it."""
        return str(self.reference if self.reference is not None else self.candidate)


def pair_outputs(
    reference: Side, candidate: Side, partners: Mapping[str, str], inputs: Collection[str]
) -> tuple[Row, ...]:
    """Every name that must_show gives of either side, once.

    partners: value of the reference -> value of the candidate. Outputs that these leave out correspond by name; of two
    sides that run, the rest corresponds in order where both have as many.
    """
    back = {b: a for a, b in partners.items()}
    mine, theirs = must_show(reference, inputs), must_show(candidate, inputs)
    rows = [Row(a, partners[a], True) for a in mine if a in partners]
    rows += [Row(back[b], b, True) for b in theirs if b in back and back[b] not in mine]
    left = [a for a in mine if a not in partners]
    right = [b for b in theirs if b not in back]
    rows += [Row(a, a) for a in left if a in right]
    left, right = [a for a in left if a not in right], [b for b in right if b not in left]
    runs = not isinstance(reference, SavedSide) and not isinstance(candidate, SavedSide)
    if runs and len(left) == len(right):
        return (*rows, *(Row(a, b) for a, b in zip(left, right, strict=True)))
    return (*rows, *(Row(a, None) for a in left), *(Row(None, b) for b in right))


def compare_outputs(
    rows: Sequence[Row],
    truth: Tensors,
    found: Tensors,
    judged: Collection[str],
    unit: Callable[[torch.Tensor, torch.Tensor], float],
) -> tuple[Finding, ...]:
    """Judge the outputs of two sides of which one or both are graphs.

    truth, found: what each side's own run showed. judged: outputs of the sides that run, on either side: an array of a
    file that maps to a value inside a graph is judged by the walk alone.
    """
    one: dict[str, torch.Tensor] = {}
    other: dict[str, torch.Tensor] = {}
    loose = []
    for row in rows:
        if row.mapped and not {row.reference, row.candidate} & set(judged):
            continue
        a, b = truth.get(row.reference or ""), found.get(row.candidate or "")
        one |= {row.name: real_pairs(a)} if a is not None else {}
        other |= {row.name: real_pairs(b)} if b is not None else {}
        if a is not None and b is not None and not row.mapped and not _identical(a, b):
            loose.append(row.name)
    findings = compare_tensors(one, other, unit).findings
    known = {finding.output for finding in findings}
    detail = "it differs, and no operator corresponds by which its error could be judged"
    return (*findings, *(Finding(n, "unmapped output", detail) for n in loose if n not in known))


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
