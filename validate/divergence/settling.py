"""Before a walk: both sides run once, their values are mapped, and their outputs compared by the rules of outputs.py."""

from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir
import torch

from ...core.dtypes import DType
from ...core.errors import UsageError
from ...core.progress import Progress, Step
from ...graph.type_names import DataType
from ...graph.values import WIDE_FLOATS
from ..compare import Finding
from .mapping import map_values
from .outputs import Row, compare_outputs, must_show, pair_outputs
from .sides import Feeds, GraphSide, SavedSide, Seen, Side, survey
from .totals import reported
from .units import unit_of, unit_of_torch
from .walk import Setting


def settle(
    graph: GraphSide,
    other: Side,
    feeds: Feeds,
    *,
    graph_is_candidate: bool,
    exact: bool,
    dtype: DType | None,
    tolerance: float,
    progress: Progress,
) -> tuple[Setting, tuple[Finding, ...]]:
    """Run both sides once; the findings are those about outputs. exact, dtype, tolerance: see DiffOptions.

    Raises UsageError where neither a value nor an output of one has a partner in the other.
    """
    progress(Step("run", 0, 2, graph.label))
    nothing = torch.empty(0)
    outputs = must_show(graph, feeds)
    kept = dict.fromkeys((*reported(graph), *must_show(other, feeds)), nothing)
    seen = survey(graph, feeds, exact=exact or not graph_is_candidate, kept=kept)
    progress(Step("run", 1, 2, other.label))
    shown = dict.fromkeys((*must_show(other, feeds), *outputs), nothing)
    theirs = survey(other, feeds, exact=exact or graph_is_candidate, kept=shown)
    mapping = map_values(graph, other, seen, theirs)
    rows = _rows(graph, other, mapping.pairs, feeds, graph_is_candidate)
    if not mapping.pairs and not any(row.reference and row.candidate for row in rows):
        raise UsageError(
            f"compare {graph.label} with {other.label}",
            found="no value of one has a partner of its name and shape in the other",
            fix="Compare graphs of one model; saved values need the graph's names",
        )
    mine, its = working_type(graph.model), None
    if isinstance(other, GraphSide):
        its = working_type(other.model)
    unit = unit_of(its) if its is not None else 0.0
    if dtype is not None:
        unit = max(unit, unit_of(DataType(dtype.onnx)))
    if not graph_is_candidate:
        unit = max(unit, unit_of(mine))
    own, its_own = _shown(graph, kept, seen, feeds), _shown(other, shown, theirs, feeds)
    truth, found = (its_own, own) if graph_is_candidate else (own, its_own)
    findings = compare_outputs(
        rows,
        truth,
        found,
        judged=outputs if isinstance(other, SavedSide) else (*outputs, *must_show(other, feeds)),
        unit=lambda a, b: max(unit, unit_of(mine), unit_of_torch(a.dtype), unit_of_torch(b.dtype)),
    )
    totals = set(reported(graph)) & mapping.pairs.keys()
    setting = Setting(
        graph=graph,
        other=other,
        mapping=mapping,
        feeds=feeds,
        seen=seen,
        theirs=theirs,
        kept={name: value for name, value in kept.items() if name in totals},
        graph_is_candidate=graph_is_candidate,
        exact=exact,
        same_type=mine == its and not exact,
        other_unit=0.0 if exact or mine == its else unit,
        tolerance=tolerance,
    )
    return setting, findings


def _rows(
    graph: GraphSide,
    other: Side,
    pairs: Mapping[str, str],
    feeds: Feeds,
    graph_is_candidate: bool,
) -> tuple[Row, ...]:
    """The outputs of both, the reference's names first."""
    if graph_is_candidate:
        return pair_outputs(other, graph, {b: a for a, b in pairs.items()}, feeds)
    return pair_outputs(graph, other, pairs, feeds)


def _shown(
    side: Side,
    kept: Mapping[str, torch.Tensor],
    seen: Mapping[str, Seen],
    feeds: Feeds,
) -> dict[str, torch.Tensor]:
    """What the side gave under the names of `kept`; an output that no node gives is an input or a weight."""
    values = {name: value for name, value in kept.items() if name in seen}
    if isinstance(side, GraphSide):
        for name in must_show(side, feeds):
            value = feeds.get(name, side.weight(name))
            if name not in values and value is not None:
                values[name] = value
    return values


def working_type(model: ir.Model) -> DataType | None:
    """The floating type that most values of the graph have."""
    counts = Counter(
        v.dtype for node in model.graph for v in node.outputs if v.dtype in WIDE_FLOATS
    )
    counts += Counter(v.dtype for v in model.graph.initializers.values() if v.dtype in WIDE_FLOATS)
    return counts.most_common(1)[0][0] if counts else None
