"""Latencies -> test cases: each limit, and every measurement that no limit was set for."""

from ..latency import BenchRecord, sizes_text
from .check import Check, limit_check, not_run


def bench_checks(record: BenchRecord) -> tuple[Check, ...]:
    """Limits first, then the medians and ratios without one, then the engines that did not run here."""
    group = record.bundle
    checks = [limit_check(group, gate) for gate in record.gates]
    known = {gate.name for gate in record.gates}
    for row in record.latencies:
        name = f"median of {row.side} at {sizes_text(row.sizes)}"
        if f"{name}, ms," not in known:
            reason = f"{row.median:.4g} ms; no limit is set"
            checks.append(not_run(group, name, reason, seconds=row.median / 1000))
    for ratio in record.ratios:
        name = f"ratio of {ratio.subject} to {ratio.baseline} at {sizes_text(ratio.sizes)}"
        if f"{name}, lower end of its interval," not in known:
            low, high = ratio.interval
            reason = (
                f"{ratio.ratio:.3f} ({low:.3f} to {high:.3f}), {ratio.verdict}; no limit is set"
            )
            checks.append(not_run(group, name, reason))
    checks += [not_run(group, f"median of {side}", why) for side, why in record.not_run.items()]
    return tuple(checks)
