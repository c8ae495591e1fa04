"""What a comparison found, as data: the first divergence, its cause, and how much was compared."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import GenericAlias
from typing import Any

from ..compare import Finding
from ..derived_record import record_of
from .diagnosis import Cause
from .measure import LocalError


@dataclass(frozen=True, slots=True)
class Divergence:
    """value: the first that its own operator gets wrong; node, op_type: that operator; nodes: all between it and
    the compared values before it. reads: those values. error_in, error_out: total relative rms errors of what it
    reads and gives when each side runs by itself (None where a side has no such value).
    """

    value: str
    other_value: str
    node: str
    op_type: str
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    error: LocalError
    cause: Cause
    error_in: float | None = None
    error_out: float | None = None

    def sentence(self) -> str:
        """One line: where and why."""
        return f"{self.op_type} {self.node}: {self.cause.kind}: {self.cause.text}"


@dataclass(frozen=True, slots=True)
class Diff:
    """equal: nothing lies beyond rounding and no finding was made. mapping: by "names" or "positions". compared of values: how many of the
    graph's values had a partner. also: further values that diverge by themselves. totals: value -> relative rms
    error when each side runs by itself (outputs, layers). errors: value -> local error over what is allowed. findings:
    rules that outputs, or arrays of a file, break whatever their errors: one that a side lacks, another shape or kind,
    NaN, integers that differ.
    """

    reference: str
    candidate: str
    inputs: str
    mapping: str
    compared: int
    values: int
    other_values: int
    first: Divergence | None
    also: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, LocalError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    repro: Path | None = None
    command: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def equal(self) -> bool:
        return self.first is None and not self.findings

    def as_dict(self) -> dict[str, object]:
        """For JSON: what DiffBody describes."""
        plain = asdict(self) | {"equal": self.equal, "repro": self.repro and str(self.repro)}
        if self.first is not None:
            plain["first"]["sentence"] = self.first.sentence()
        found: dict[str, object] = DiffBody.model_validate(plain).model_dump(mode="json")
        return found


_ERROR = record_of(LocalError)
_FIRST = record_of(
    Divergence, changed={"error": _ERROR, "cause": record_of(Cause), "sentence": str}
)
# What `blockforge diff --json` prints.
DiffBody: Any = record_of(
    Diff,
    changed={
        "first": _FIRST | None,
        "findings": GenericAlias(tuple, (record_of(Finding), ...)),
        "errors": GenericAlias(dict, (str, _ERROR)),
        "repro": str | None,
        "equal": bool,
    },
)
