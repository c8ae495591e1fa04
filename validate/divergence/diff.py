"""diff: compare two sides value by value and find the first operator that goes wrong by itself.

map values -> give each operator the other side's inputs -> local error against rounding noise
-> the first beyond it -> cause -> smallest graph that shows it
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch

from ...core.dtypes import DType
from ...core.errors import UsageError
from ...core.progress import Progress, Step, silent
from ...core.shapes import Shape
from ...graph.type_names import type_name
from ..compare import Finding
from .diagnosis import Case, Cause, diagnose
from .feeds import choose_feeds
from .measure import LocalError
from .plan_side import PlanSide
from .record import Diff, Divergence
from .repro import write_repro
from .settling import settle
from .sides import GraphSide, SavedSide, Side
from .totals import reported, totals_around
from .units import unit_of
from .values import compare_values
from .walk import Evidence, Setting, Walked, walk
from .weight_check import WeightDifference, differing_weights

ALSO = 16


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """inputs: tensors of a file. shapes, seed: of seeded inputs. exact: the candidate graph computes in float64 too:
    only what it means counts. dtype: the type that saved values were computed in, where their own type hides it; it
    overrides theirs. tolerance: how many times the noise an operator may be off. repro: folder for the smallest graph.
    """

    inputs: Mapping[str, torch.Tensor] | None = None
    shapes: Mapping[str, Shape] | None = None
    seed: int = 0
    exact: bool = False
    dtype: DType | None = None
    tolerance: float = 1.0
    repro: Path | None = None


def diff(
    reference: Side,
    candidate: Side,
    options: DiffOptions = DiffOptions(),
    progress: Progress = silent,
) -> Diff:
    """Compare `candidate` with `reference`.

    Where the candidate is a graph, its operators are run on the reference's values. Where only the reference is
    one, its operators are run on the candidate's values and say what these should be. Where neither is, values are
    compared by name and the first whose error grows is given. Raises UsageError where nothing can be compared.
    """
    if options.tolerance <= 0:
        raise UsageError(
            f"tolerance {options.tolerance:g}", found="not positive", fix="1 is the noise"
        )
    if isinstance(reference, SavedSide) and isinstance(candidate, SavedSide):
        reference, candidate = reference.whole(), candidate.whole()
    sides = (reference, candidate)
    more = [
        f"{side.label}: the first of its {1 + len(side.later)} sets is compared"
        for side in sides
        if isinstance(side, SavedSide) and side.later
    ]
    found = _compare(reference, candidate, options, progress)
    return replace(found, notes=(*found.notes, *more))


def _compare(reference: Side, candidate: Side, options: DiffOptions, progress: Progress) -> Diff:
    sides = (reference, candidate)
    feeds, source = choose_feeds(sides, options.inputs, options.shapes or {}, options.seed)
    if not isinstance(candidate, GraphSide) and not isinstance(reference, GraphSide):
        return compare_values(reference, candidate, feeds, source, options.dtype, options.tolerance)
    computed = [side.computes for side in sides if isinstance(side, PlanSide)]
    if options.dtype is None and computed:
        options = replace(options, dtype=computed[-1])
    graph_is_candidate = isinstance(candidate, GraphSide)
    graph, other = (candidate, reference) if graph_is_candidate else (reference, candidate)
    assert isinstance(graph, GraphSide)
    setting, findings = settle(
        graph,
        other,
        feeds,
        graph_is_candidate=graph_is_candidate,
        exact=options.exact,
        dtype=options.dtype,
        tolerance=options.tolerance,
        progress=progress,
    )
    try:
        walked = walk(setting, progress)
        if walked.first is None:  # nothing to diagnose: the other side is not run again
            other.release()
        return _conclude(setting, walked, findings, source, options, progress)
    finally:
        other.release()


def _conclude(
    setting: Setting,
    walked: Walked,
    findings: tuple[Finding, ...],
    source: str,
    options: DiffOptions,
    progress: Progress,
) -> Diff:
    progress(Step("diagnose"))
    excused = _explained(setting, walked, findings)
    first = walked.first
    differing = [w for w in differing_weights(setting) if not _undone(w, walked)]
    notes = [f"{w.name}: {w.difference.text} ({w.difference.kind})" for w in differing[:ALSO]]
    order = {node: i for i, node in enumerate(setting.graph.model.graph)}
    found: Divergence | None = None
    if differing and (first is None or order[differing[0].node] < order[first.region.node]):
        found, first = _by_weight(setting, differing[0], walked), None
    elif first is not None:
        found = _by_numbers(setting, first)
    totals = totals_around(setting, walked.totals, found)
    if found is not None:
        found = replace(
            found,
            error_in=max(
                (totals[n] for n in found.reads if n in totals and n not in walked.held),
                default=None,
            ),
            error_out=totals.get(found.value),
        )
    graph, other = setting.graph.label, setting.other.label
    result = Diff(
        reference=other if setting.graph_is_candidate else graph,
        candidate=graph if setting.graph_is_candidate else other,
        inputs=source,
        mapping=setting.mapping.how,
        compared=len(setting.mapping.pairs),
        values=setting.mapping.graph_values,
        other_values=setting.mapping.other_values,
        first=found,
        also=tuple(
            n
            for n, e in walked.errors.items()
            if e.diverged and (found is None or n != found.value)
        )[:ALSO],
        totals={n: totals[n] for n in reported(setting.graph) if n in totals},
        errors=walked.errors,
        notes=(
            *notes,
            *_silent_differences(setting, found),
            *(f"{finding}; with equal inputs its operator gives the same" for finding in excused),
            *_held(walked),
        ),
        findings=tuple(f for f in findings if f not in excused),
    )
    if options.repro is None or found is None or first is None:
        return result
    command = write_repro(
        first, setting.graph.model, found, options.repro, candidate=setting.graph_is_candidate
    )
    return replace(result, repro=options.repro, command=command)


def _explained(setting: Setting, walked: Walked, findings: tuple[Finding, ...]) -> list[Finding]:
    """Integers that rounding before them flipped, and numbers that only mask: their own operators gave the same."""
    judged = {
        name
        for mine, their in setting.mapping.pairs.items()
        if mine in walked.errors and not walked.errors[mine].diverged
        for name in ({their} if setting.graph_is_candidate else {mine})
    }
    return [f for f in findings if f.rule in ("integers", "not finite") and f.output in judged]


def _undone(weight: WeightDifference, walked: Walked) -> bool:
    """Whether a weight differs by powers of two that the operators around it undo: its region is right, and reads or
    gives a value held at powers of two, or goes on behind the weight."""
    if not weight.by_powers:
        return False
    held = set(walked.held)
    for region in walked.right:
        if weight.node in region.nodes:
            names = {region.name, *(str(v.name) for v in region.inputs)}
            return bool(held & names) or sum(n.op_type != "Cast" for n in region.nodes) > 1
    return False


def _held(walked: Walked) -> list[str]:
    """The note on values that the candidate holds at powers of two."""
    if not walked.held:
        return []
    count, some = len(walked.held), ", ".join(walked.held[:4])
    values = "value is" if count == 1 else "values are"
    more = ", ..." if count > 4 else ""
    return [f"{count} {values} held at powers of two, which what reads them undoes: {some}{more}"]


def _by_numbers(setting: Setting, first: Evidence) -> Divergence:
    cause = diagnose(Case(first, setting))
    node = next(
        (n for n in setting.graph.model.graph if cause.node is not None and n.name == cause.node),
        first.region.node,
    )
    return Divergence(
        value=first.region.name,
        other_value=setting.mapping.pairs[first.region.name],
        node=node.name or first.region.name,
        op_type=node.op_type,
        nodes=tuple(n.name or n.op_type for n in first.region.nodes),
        reads=tuple(str(v.name) for v in first.region.inputs),
        error=first.error,
        cause=cause,
    )


def _by_weight(setting: Setting, weight: WeightDifference, walked: Walked) -> Divergence:
    """A weight that differs where these inputs do not show it."""
    value = str(weight.node.outputs[0].name)
    error = walked.errors.get(value, LocalError(0.0, "whole", (), 0.0, 0.0, 0.0))
    text = f"{weight.name}: {weight.difference.text}"
    if not error.diverged:
        text += "; these inputs do not reach it here"
    facts = {"weight": weight.name, **weight.difference.facts}
    return Divergence(
        value=value,
        other_value=setting.mapping.pairs.get(value, value),
        node=weight.node.name or value,
        op_type=weight.node.op_type,
        nodes=(weight.node.name or value,),
        reads=tuple(str(v.name) for v in weight.node.inputs if v is not None),
        error=error,
        cause=Cause(weight.difference.kind, text, facts),
    )


def _silent_differences(setting: Setting, found: Divergence | None) -> list[str]:
    """Attributes that differ between partners and that these inputs do not show."""
    other = setting.other
    if not isinstance(other, GraphSide):
        return []
    notes = []
    for name, their in setting.mapping.pairs.items():
        mine, partner = setting.graph.values[name].producer(), other.values[their].producer()
        if mine is None or partner is None or mine.op_type != partner.op_type:
            continue
        if found is not None and mine.name == found.node:
            continue
        for key in sorted({*mine.attributes, *partner.attributes}):
            a, b = (
                n.attributes[key].value if key in n.attributes else None for n in (mine, partner)
            )
            if key != "to" and a != b and not isinstance(a, ir.Graph):
                notes.append(f"{mine.name}: {key} is {a}, and {b} in {other.label}")
        types = (setting.graph.values[name].dtype, other.values[their].dtype)
        if setting.same_type and unit_of(types[0]) > unit_of(types[1]) > 0:
            notes.append(
                f"{name} is {type_name(types[0])}, and {type_name(types[1])} in {other.label}"
            )
    return notes[:ALSO]
