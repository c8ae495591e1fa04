"""`blockforge bench`: every graph of a bundle that runs here, at every size, against what it is compared with.

sides -> opened -> for each size: first call, warm-up, interleaved rounds -> percentiles, ratios, limits
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import torch

from ...core.bundle import Bundle
from ...core.errors import UsageError
from ...core.progress import Progress, silent
from ..inputs import axis_ranges, seeded_inputs
from .machine import Watch
from .opening import Reference, feeds_for, open_sides
from .record import BenchRecord, MachineRecord
from .request import BenchRequest
from .results import gates_of, latency_record, notes_on, ratio_record
from .roofline import Rooflines
from .rounds import Series, measure
from .sides import GraphSide, Side, baselines_of, left_out, subjects_of
from .workload import Feeds, Workload

SEQUENCES = ("sequence", "source")  # the axes that --sequence sizes


def bench(
    bundle: Bundle,
    request: BenchRequest,
    reference: Callable[[], Reference],
    *,
    progress: Progress = silent,
) -> BenchRecord:
    """Measure; the record says in `failures` which limits were missed.

    reference: opens the bundle's PyTorch module; called where a baseline or the roofline needs it. Every side is open
    at once, since they take turns. Raises what sides.py and opening.py raise: before anything is measured, except
    for what only a run can show.
    """
    subjects = subjects_of(bundle, request.precisions, request.targets)
    pairs = _pairs(bundle, subjects, request.against)
    by_label: dict[str, Side] = {side.label: side for side in subjects}
    for _, baseline in pairs:
        by_label.setdefault(baseline.label, baseline)
    sides = tuple(by_label.values())
    grid = grid_of(subjects[0], request)
    feeds = [[feeds_for(side, _inputs(subjects[0], sizes)) for side in sides] for sizes in grid]
    bundle.verify()
    clocks, series, machine = _measured(sides, feeds, request, reference, progress)
    rooflines = Rooflines(reference)
    names = {side.label for side in subjects}
    latencies = tuple(
        latency_record(side, side.label in names, sizes, clock, found, rooflines)
        for sizes, by_side in zip(grid, series, strict=True)
        for side, clock, found in zip(sides, clocks, by_side, strict=True)
    )
    ratios = tuple(
        ratio_record(subject, baseline, sizes, dict(zip(by_label, by_side, strict=True)), request)
        for sizes, by_side in zip(grid, series, strict=True)
        for subject, baseline in pairs
    )
    return BenchRecord(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=str(bundle.path),
        seconds=request.effort.seconds,
        threshold=request.threshold,
        seed=request.effort.seed,
        machine=machine,
        latencies=latencies,
        ratios=ratios,
        gates=gates_of(latencies, ratios, request),
        notes=(*rooflines.notes, *notes_on(latencies, ratios, request)),
        files={s.label: s.sha256 for s in sides if isinstance(s, GraphSide) and s.sha256},
        not_run=left_out(bundle, request.precisions, request.targets),
    )


def _pairs(
    bundle: Bundle, subjects: Sequence[GraphSide], against: Sequence[str]
) -> list[tuple[GraphSide, Side]]:
    """Every subject with every baseline but itself; UsageError where a baseline is only ever itself."""
    pairs = [
        (s, b) for s in subjects for b in baselines_of(bundle, s, against) if b.label != s.label
    ]
    if against and not pairs:
        raise UsageError(
            f"bench against {', '.join(against)}",
            found=f"that is {subjects[0].label} itself",
            fix=f"Name another target, or measure it against a second copy of itself: {bundle.path}",
        )
    return pairs


def _measured(
    sides: Sequence[Side],
    feeds: Sequence[Sequence[Feeds]],
    request: BenchRequest,
    reference: Callable[[], Reference],
    progress: Progress,
) -> tuple[list[str], list[list[Series]], MachineRecord]:
    """Clock of each side, series by size and side, and the machine; everything is closed whatever happens."""
    threads_before = torch.get_num_threads()
    watch = Watch()
    opened: list[Workload] = []
    try:
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        open_sides(sides, reference, clock=request.clock, threads=request.threads, opened=opened)
        series = [measure(opened, given, request.effort, progress=progress) for given in feeds]
        return [w.clock for w in opened], series, watch.record(request.threads)
    finally:
        watch.close()
        for workload in opened:
            workload.close()
        torch.set_num_threads(threads_before)


def grid_of(subject: GraphSide, request: BenchRequest) -> list[dict[str, int]]:
    """The size of every dynamic axis at each point; UsageError where an axis that was sized does not exist.

    Sizes that nobody named are the usual ones of the first profile that holds the others.
    """
    profiles = [axis_ranges(subject.inputs, profile) for profile in subject.profiles]
    ranges = profiles[0]
    for option, axes, sizes in (
        ("batch", ("batch",), request.batches),
        ("sequence", SEQUENCES, request.sequences),
    ):
        if sizes and not set(axes) & set(ranges):
            raise UsageError(
                f"bench --{option}",
                found=f"the graph has no axis {option!r}",
                fix=f"Its dynamic axes are {', '.join(ranges) or 'none'}",
            )
    points = []
    for batch, sequence in itertools.product(
        request.batches or (None,), request.sequences or (None,)
    ):
        given = {"batch": batch, **dict.fromkeys(SEQUENCES, sequence)}
        named = {axis: size for axis, size in given.items() if size and axis in ranges}
        fitting = (p for p in profiles if all(p[a][0] <= n <= p[a][2] for a, n in named.items()))
        usual = next(fitting, ranges)
        points.append({axis: named.get(axis, opt) for axis, (_, opt, _) in usual.items()})
    return points


def _inputs(subject: GraphSide, sizes: Mapping[str, int]) -> Feeds:
    """Seeded inputs; an integer of which nothing is known is 0, which every table has."""
    return seeded_inputs(subject.inputs, sizes, vocab_size=1, seed=0)
