"""Type a model, in memory or from file to file.

FP32 graph + feeds -> ranges -> exponents -> FP32 graph that fits 16 bits -> typed graph + report
"""

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import torch
from onnx_ir.passes import common

from ...core.errors import ArtefactError, UsageError
from ...core.progress import Progress, Step, silent
from ...graph.io import load_model, save_model
from ...graph.spec import check_graph
from ...graph.type_names import type_name
from ..fusions.files import checker_words
from .bounds import bounds
from .islands import islands
from .lower import Lowering
from .masks import bound_infinities, hidden_values
from .options import PrecisionOptions
from .prepare import FLOAT, already_typed, prepare, unique_names
from .ranges import measure_ranges
from .report import Headroom, PrecisionReport, Scaled, Wide, layer_of
from .rescale import Rescaling
from .streams import Streams, bits_beyond
from .structure import MOVES, Reasons, all_nodes, is_constant, is_float, wide_by_structure
from .weights import Weights

Ranges = Mapping[str, float]


def typed_file(
    source: str | Path,
    output: str | Path,
    feeds: Sequence[Mapping[str, torch.Tensor]],
    options: PrecisionOptions,
    progress: Progress = silent,
) -> PrecisionReport:
    """Read the FP32 graph at `source`, measure it on `feeds`, write the typed one to `output` and say what was done.

    A graph that is typed already is copied as it is. Raises UsageError for a missing file, a quantised graph,
    one typed in the other 16-bit type, or feeds that do not fit; ArtefactError for a damaged file or a result
    that the ONNX checker refuses. Nothing is written then.
    """
    model = load_model(source)
    report = _recognised(model, options)
    if report is None:
        prepare(model, options)
        ranges = measure_ranges(model, feeds, progress)
        progress(Step("type graph", detail=options.precision.value))
        report = _typed(model, ranges, options)
    progress(Step("write weights"))
    with _staged(Path(output)) as staged:
        save_model(model, staged)
        if words := checker_words(load_model(staged)):
            raise ArtefactError(f"typed form of {source}", found=f"it is not valid ONNX: {words}")
    return report


@contextlib.contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A path beside `output` whose files take its place on a clean exit, and are gone otherwise."""
    output = output.absolute()
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{output.name}.", suffix=".partial", dir=output.parent
        ) as folder:
            yield Path(folder) / output.name
            for file in sorted(Path(folder).iterdir(), reverse=True):  # the data before the graph
                file.replace(output.parent / file.name)
    except OSError as error:
        raise UsageError(
            f"write {output}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write, with enough room",
        ) from None


def typed_model(model: ir.Model, ranges: Ranges, options: PrecisionOptions) -> PrecisionReport:
    """Type `model` in place. ranges: the largest magnitude of its values by name (measure_ranges).

    Values that fusion or inlining renames have no range then: run `prepare` first, measure, and give the result.
    """
    report = _recognised(model, options)
    if report is not None:
        return report
    prepare(model, options)
    return _typed(model, ranges, options)


def repair_model(model: ir.Model, ranges: Ranges, options: PrecisionOptions) -> PrecisionReport:
    """Only scale `model` in place, by powers of two, until `options.precision` could hold its values; it stays FP32.

    Its results are bit for bit those of before, subnormal numbers aside.
    """
    prepare(model, options)
    weights, report = Weights(options), PrecisionReport(options.precision.value)
    sizes = _Sizes(model, ranges, weights, hidden_values(model, options), options)
    _repair(model, sizes, wide_by_structure(model, options), weights, report)
    check_graph(model)
    return report


def _recognised(model: ir.Model, options: PrecisionOptions) -> PrecisionReport | None:
    already = already_typed(model)
    if already is None:
        return None
    if already != options.precision.value:
        raise UsageError(
            f"{options.precision.value} form of {model.graph.name or 'the graph'}",
            found=f"it is {already} already",
            fix="Give the FP32 graph",
        )
    return PrecisionReport(options.precision.value, already=already)


def _typed(model: ir.Model, ranges: Ranges, options: PrecisionOptions) -> PrecisionReport:
    started = time.perf_counter()
    report = PrecisionReport(options.precision.value)
    report.masks = bound_infinities(model, options)
    weights = Weights(options)
    hidden = hidden_values(model, options)
    wide = wide_by_structure(model, options)
    sizes = _Sizes(model, ranges, weights, hidden, options)
    rescaling = _repair(model, sizes, wide, weights, report)
    stuck = islands(model, sizes.held(rescaling), wide, weights, options)
    types = dict.fromkeys(wide, FLOAT)
    types |= {node: ir.DataType(options.island.onnx) for node in stuck}
    report.nodes = sum(1 for _ in all_nodes(model.graph))
    report.wide_nodes = _counted(wide)
    report.low_nodes = report.nodes - len(types)
    report.islands = [
        Wide(n.name or n.op_type, n.op_type, options.island.value, reason)
        for n, reason in stuck.items()
    ]
    names = {v: str(v.name) for v in rescaling.held}
    Lowering(model, options, types, weights, report).apply(hidden)
    report.headroom = sizes.headroom(rescaling, names)
    report.unproved = sizes.unproved(rescaling, names)
    common.RemoveUnusedNodesPass()(model)
    unique_names(model)
    check_graph(model)
    report.seconds = time.perf_counter() - started
    return report


def _repair(
    model: ir.Model, sizes: "_Sizes", wide: Reasons, weights: Weights, report: PrecisionReport
) -> Rescaling:
    """Scale what passes the range by powers of two; the graph is FP32 still and computes the same numbers."""
    streams = Streams(model.graph, sizes.hidden)
    if sizes.options.repair:
        needs = sizes.needs(wide)
        streams.choose(needs, wide)
        for root, bits in streams.exponents.items():
            if not bits:
                continue
            members = streams.members[root]
            worst = max(members, key=sizes.size)
            report.streams.append(
                Scaled(
                    bits, str(worst.name), sizes.size(worst), tuple(str(v.name) for v in members)
                )
            )
    rescaling = Rescaling(model, streams, weights, report)
    rescaling.apply()
    return rescaling


def _counted(wide: Reasons) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in wide.values():
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))


class _Sizes:
    """The largest magnitude of each value, measured (with the margin) or bounded, whichever is smaller."""

    def __init__(
        self,
        model: ir.Model,
        ranges: Ranges,
        weights: Weights,
        hidden: set[ir.Value],
        options: PrecisionOptions,
    ) -> None:
        self.model, self.options, self.weights, self.hidden = model, options, weights, hidden
        self.bounded = bounds(model, weights)
        values = [*model.graph.inputs, *(v for n in all_nodes(model.graph) for v in n.outputs)]
        self.values = [v for v in values if is_float(v)]
        self.measured = {v: ranges[str(v.name)] for v in self.values if v.name in ranges}
        for node in all_nodes(model.graph):
            if node.op_type in MOVES:
                self._move(node)

    def _move(self, node: ir.Node) -> None:
        """What only moves numbers has the range of what it moves; the evaluator does not measure it."""
        sizes = []
        for value in filter(is_float, node.inputs):
            assert value is not None
            known = self.weights.largest(value) if is_constant(value) else self.measured.get(value)
            if known is None:
                return
            sizes.append(known)
        if sizes:
            for value in filter(is_float, node.outputs):
                self.measured.setdefault(value, max(sizes))

    def size(self, value: ir.Value) -> float:
        """What the type must hold; 0 where nothing is known."""
        if value in self.hidden:
            return min(self.options.limit, self.measured.get(value, 0.0))
        measured = self.measured.get(value, math.inf) * self.options.margin
        size = min(measured, self.bounded.get(value, math.inf))
        return size if math.isfinite(size) else 0.0

    def needs(self, wide: Reasons) -> dict[ir.Value, int]:
        """Bits by which each 16-bit value, or the weight behind it, passes the range."""
        limit = self.options.limit
        needs: dict[ir.Value, int] = {}
        for node in all_nodes(self.model.graph):
            if node in wide:
                continue
            for value in (*node.inputs, *node.outputs):
                if value is None or not is_float(value):
                    continue
                if is_constant(value):
                    bits = bits_beyond(self.weights.largest(value), limit)
                    value = node.outputs[0]
                else:
                    bits = bits_beyond(self.size(value), limit)
                if bits and value not in self.hidden:
                    needs[value] = max(bits, needs.get(value, 0))
        return needs

    def held(self, rescaling: Rescaling) -> dict[ir.Value, float]:
        """The magnitude of each value as the scaled graph holds it."""
        held = {v: self.size(v) * 2.0 ** -rescaling.held.get(v, 0) for v in self.values}
        for value, source in rescaling.source.items():
            held[value] = self.size(source) * 2.0 ** -rescaling.held[value]
        return held

    def headroom(self, rescaling: Rescaling, names: Mapping[ir.Value, str]) -> list[Headroom]:
        """A row for each value of the prepared graph that ended in 16 bits or passed their range."""
        rows = []
        for value in self.values:
            measured, bound = self.measured.get(value), self.bounded.get(value, math.inf)
            if (measured is None and math.isinf(bound)) or value in self.hidden:
                continue
            known = measured is not None and measured * self.options.margin < bound
            largest = measured if known and measured is not None else bound
            before = math.log2(self.options.limit / largest) if largest else math.inf
            if value.dtype == FLOAT and before >= 0:
                continue
            name = names.get(value, str(value.name))
            after = before + rescaling.held.get(value, 0)
            source: Literal["measured", "bound"] = "measured" if known else "bound"
            rows.append(
                Headroom(
                    layer_of(name), name, largest, source, before, after, type_name(value.dtype)
                )
            )
        return rows

    def unproved(self, rescaling: Rescaling, names: Mapping[ir.Value, str]) -> list[str]:
        """16-bit values of which nothing is known."""
        return [
            names.get(v, str(v.name))
            for v in self.values
            if v not in self.measured
            and v not in self.bounded
            and v.dtype == self.options.low
            and v not in rescaling.source
        ]
