"""Series of times -> records: percentiles, throughput, ratios, limits, and what a reader should know of them."""

from collections.abc import Mapping, Sequence

from ...core.manifest import GateRecord
from .record import LatencyRecord, RatioRecord
from .request import BenchRequest
from .roofline import Rooflines
from .rounds import Series
from .sides import Side
from .statistics import paired_ratio, percentile


def latency_record(
    side: Side,
    is_subject: bool,
    sizes: Mapping[str, int],
    clock: str,
    found: Series,
    rooflines: Rooflines,
) -> LatencyRecord:
    """What one side took at one size."""
    median = percentile(found.calls, 50)
    assert median is not None, "every round calls every side twice"
    batch, sequence = sizes.get("batch"), sizes.get("sequence")
    tokens = None if batch is None or sequence is None else batch * sequence
    p90, p99 = (percentile(found.calls, percent) for percent in (90, 99))
    return LatencyRecord(
        side=side.label,
        role="subject" if is_subject else "baseline",
        batch=batch,
        sequence=sequence,
        sizes=dict(sizes),
        clock=clock,
        first=1000 * found.first,
        warmup_calls=len(found.warmup),
        settled=found.settled,
        calls=len(found.calls),
        median=1000 * median,
        p90=None if p90 is None else 1000 * p90,
        p99=None if p99 is None else 1000 * p99,
        tokens_per_second=None if tokens is None else tokens / median,
        roofline=rooflines.share(side, batch, sequence, median),
        rounds=tuple(1000 * seconds for seconds in found.rounds),
    )


def ratio_record(
    subject: Side,
    baseline: Side,
    sizes: Mapping[str, int],
    series: Mapping[str, Series],
    request: BenchRequest,
) -> RatioRecord:
    """How one side compares with another at one size. series: by label."""
    rounds = series[subject.label].rounds, series[baseline.label].rounds
    ratio = paired_ratio(*rounds, seed=request.effort.seed)
    return RatioRecord(
        subject=subject.label,
        baseline=baseline.label,
        sizes=dict(sizes),
        ratio=ratio.value,
        interval=(ratio.low, ratio.high),
        rounds=ratio.rounds,
        verdict=ratio.verdict(request.threshold),
    )


def gates_of(
    latencies: Sequence[LatencyRecord], ratios: Sequence[RatioRecord], request: BenchRequest
) -> tuple[GateRecord, ...]:
    """A ratio misses its limit where its whole interval lies above: noise alone fails nothing."""
    gates = []
    if request.max_ms is not None:
        for row in latencies:
            if row.role == "subject":
                name = f"median of {row.side} at {sizes_text(row.sizes)}, ms,"
                gates.append(_gate(name, row.median, request.max_ms))
    if request.max_ratio is not None:
        for ratio in ratios:
            name = (
                f"ratio of {ratio.subject} to {ratio.baseline} at {sizes_text(ratio.sizes)}, "
                "lower end of its interval,"
            )
            gates.append(_gate(name, ratio.interval[0], request.max_ratio))
    return tuple(gates)


def _gate(name: str, value: float, limit: float) -> GateRecord:
    return GateRecord(name=name, value=value, relation="<=", limit=limit, passed=value <= limit)


def notes_on(
    latencies: Sequence[LatencyRecord], ratios: Sequence[RatioRecord], request: BenchRequest
) -> tuple[str, ...]:
    """What a reader should know: sides that never settled, comparisons that a limit lies inside of."""
    drifting = [
        f"{row.side} at {sizes_text(row.sizes)} was still drifting after {row.warmup_calls} calls of warm-up"
        for row in latencies
        if not row.settled
    ]
    limit = request.max_ratio
    undecided = [
        f"{r.subject} against {r.baseline} at {sizes_text(r.sizes)} is {r.ratio:.3f}, but its interval "
        f"{r.interval[0]:.3f} to {r.interval[1]:.3f} does not exclude the limit {limit:g}: measure longer"
        for r in ratios
        if limit is not None and r.interval[0] <= limit < r.ratio
    ]
    return (*drifting, *undecided)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """`batch 1, sequence 128`."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its fixed sizes"
