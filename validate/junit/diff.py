"""A comparison of two sides -> test cases: each compared value within its rounding, and whether anything diverges."""

from ...core.manifest import GateRecord
from ..divergence import Diff
from .check import Check, limit_check

OVER = "error over what rounding explains"


def diff_checks(diff: Diff, *, seconds: float | None = None) -> tuple[Check, ...]:
    """The first divergence, which a weight may cause that no value shows, each rule that an output breaks, then every
    value in the graph's order.

    seconds: that the comparison took, which finds the first.
    """
    group = f"{diff.reference} - {diff.candidate}"
    if diff.first is None:
        first = Check(
            group, "first divergence", "passed", f"none in {diff.compared} values", seconds
        )
    else:
        first = Check(group, "first divergence", "failed", diff.first.sentence(), seconds)
    values = [
        limit_check(
            group,
            GateRecord(
                name=f"{name}: {OVER}",
                value=error.over,
                relation="<=",
                limit=1.0,
                passed=not error.diverged,
            ),
        )
        for name, error in diff.errors.items()
    ]
    broken = [Check(group, f"{f.output}: {f.rule}", "failed", str(f)) for f in diff.findings]
    return (first, *broken, *values)
