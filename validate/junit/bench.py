"""Latencies -> test cases: each limit, and every measurement that no limit was set for."""

from ..latency import BenchRecord, sizes_text
from .check import Check, limit_check, not_run


def bench_checks(record: BenchRecord) -> tuple[Check, ...]:
    """Limits first, then the medians and ratios without one, then the engines that did not run here."""
    group = record.bundle
    medians = {f"median of {r.side} at {sizes_text(r.sizes)}": r.median for r in record.latencies}
    seconds = {f"{name}, ms,": median / 1000 for name, median in medians.items()}
    checks = [limit_check(group, g, seconds=seconds.get(g.name)) for g in record.gates]
    known = {gate.name for gate in record.gates}
    for name, median in medians.items():
        if f"{name}, ms," not in known:
            reason = f"{median:.4g} ms; no limit is set"
            checks.append(not_run(group, name, reason, seconds=median / 1000))
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
