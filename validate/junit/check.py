"""One test case of a JUnit file: a limit that held or was missed, or what was not run, with the reason."""

from dataclasses import dataclass
from typing import Literal

from ...core.manifest import GateRecord

State = Literal["passed", "failed", "skipped", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """group: what was judged, e.g. `smollm2.fp16.typed-evaluator`. name: the limit. text: measured and allowed, or why not.

    It passes only where a limit was applied. seconds: what was measured of how long it took, None where nothing was.
    """

    group: str
    name: str
    state: State
    text: str = ""
    seconds: float | None = None


def limit_check(group: str, gate: GateRecord, *, seconds: float | None = None) -> Check:
    """A gate as a test case."""
    text = f"{gate.name} is {gate.value:.6g}, the limit is {gate.relation} {gate.limit:g}"
    state: State = "passed" if gate.passed else "failed"
    return Check(group, gate.name.rstrip(","), state, text, seconds)


def not_run(group: str, name: str, reason: str, *, seconds: float | None = None) -> Check:
    """Something that no limit was applied to."""
    return Check(group, name, "skipped", reason, seconds)
