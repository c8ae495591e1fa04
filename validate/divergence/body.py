"""A comparison as JSON: what `blockforge diff --json` prints, typed, so that its schema cannot drift from it."""

from typing import Any

from ...core.records import Record
from .measure import LocalError, Place


class LocalErrorBody(Record):
    """One value's local error; over: times what rounding explains. See measure.LocalError."""

    over: float
    place: Place
    index: tuple[int, ...]
    relative: float
    noise: float
    unit: float
    wrong: int
    capped: bool

    @classmethod
    def of(cls, error: LocalError) -> "LocalErrorBody":
        """The same numbers."""
        return cls(**{name: getattr(error, name) for name in cls.model_fields})


class CauseBody(Record):
    """Why an operator is wrong; confirmed: a repair removed the error."""

    kind: str
    text: str
    facts: dict[str, Any]
    confirmed: bool
    node: str | None


class DivergenceBody(Record):
    """The first value that its own operator gets wrong. See record.Divergence."""

    value: str
    other_value: str
    node: str
    op_type: str
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    error: LocalErrorBody
    cause: CauseBody
    error_in: float | None
    error_out: float | None
    sentence: str


class DiffBody(Record):
    """A whole comparison. See record.Diff."""

    equal: bool
    reference: str
    candidate: str
    inputs: str
    mapping: str
    compared: int
    values: int
    other_values: int
    first: DivergenceBody | None
    also: tuple[str, ...]
    totals: dict[str, float]
    errors: dict[str, LocalErrorBody]
    notes: tuple[str, ...]
    repro: str | None
    command: str
