"""Type a model, in memory or from file to file.

FP32 graph + feeds -> ranges -> exponents -> FP32 graph that fits 16 bits -> typed graph + report
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
import torch
from onnx_ir.passes import common

from ...core.errors import ArtefactError, UsageError
from ...core.progress import Progress, Step, silent
from ...graph.io import load_model, save_model
from ...graph.spec import check_graph
from ..fusions.files import checker_words
from .channels import Channels
from .islands import islands
from .lift import lift_streams, lift_weights, lost_at_edges, still_faint
from .lower import Lowering
from .masks import bound_infinities, hidden_values
from .migrate import migrate
from .options import PrecisionOptions
from .prepare import FLOAT, already_typed, prepare, unique_names
from .pushed_down import pushed_down
from .ranges import Ranges, measure_ranges
from .report import PrecisionReport, Scaled, Wide
from .rescale import Rescaling
from .sizes import Sizes
from .streams import Streams
from .structure import Reasons, all_nodes, wide_by_structure
from .weights import Weights


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
    """Type `model` in place. ranges: the largest magnitudes of its values by name (measure_ranges).

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
    streams = Streams(model.graph, hidden_values(model, options))
    sizes = Sizes(model, ranges, weights, streams, options)
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
    sizes = Sizes(model, ranges, weights, Streams(model.graph, hidden), options)
    rescaling = _repair(model, sizes, wide, weights, report)
    pushed = pushed_down(rescaling, sizes)
    stuck = islands(model, sizes.held(rescaling), wide, weights, options)
    stuck = still_faint(model, rescaling, sizes, wide) | stuck
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
    report.nonfinite = list(sizes.causes)
    report.notes += [*pushed, *lost_at_edges(model, rescaling, sizes)]
    common.RemoveUnusedNodesPass()(model)
    unique_names(model)
    check_graph(model)
    report.seconds = time.perf_counter() - started
    return report


def _repair(
    model: ir.Model, sizes: Sizes, wide: Reasons, weights: Weights, report: PrecisionReport
) -> Rescaling:
    """Scale what passes the range, or is too small for it, by powers of two; the graph is FP32 still and computes the same numbers."""
    streams = sizes.streams
    if sizes.options.repair:
        migrate(Channels(streams), sizes.needs(wide), sizes, weights, report)
        streams.choose(sizes.needs(wide), wide)
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
        lift_streams(sizes, wide, report)
    rescaling = Rescaling(model, streams, weights, report)
    rescaling.apply()
    if sizes.options.repair:
        lift_weights(rescaling, sizes, wide)
    return rescaling


def _counted(wide: Reasons) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in wide.values():
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))
