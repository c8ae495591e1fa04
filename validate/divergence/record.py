"""What a comparison found, as data: the first divergence, its cause, and how much was compared."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from .body import DiffBody, DivergenceBody, LocalErrorBody
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
    """equal: nothing lies beyond rounding. mapping: by "names" or "positions". compared of values: how many of the
    graph's values had a partner. also: further values that diverge by themselves. totals: value -> relative rms
    error when each side runs by itself (outputs, layers). errors: value -> local error over what is allowed.
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

    @property
    def equal(self) -> bool:
        return self.first is None

    def as_dict(self) -> dict[str, object]:
        """For JSON: what DiffBody describes."""
        first = None
        if self.first is not None:
            known = asdict(self.first) | {"error": LocalErrorBody.of(self.first.error)}
            first = DivergenceBody(**known, sentence=self.first.sentence())
        same = {f.name: getattr(self, f.name) for f in fields(self)}
        body = DiffBody(
            **same
            | {
                "equal": self.equal,
                "first": first,
                "totals": dict(self.totals),
                "errors": {name: LocalErrorBody.of(error) for name, error in self.errors.items()},
                "repro": None if self.repro is None else str(self.repro),
            }
        )
        return body.model_dump(mode="json")
