"""What long work says of itself; the command line draws it, a library user may ignore it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of a stage: `done` of `total` units (total 0: unknown)."""

    stage: str
    done: int = 0
    total: int = 0
    detail: str = ""


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Drop the step."""
