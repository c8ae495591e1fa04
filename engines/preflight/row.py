"""One row of the table of forms: an operator, a condition, what happens, the fix, and whether compile legalises it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .finding import Severity
from .scene import Scene

BOTH = ("tensorrt-rtx", "tensorrt")
RTX = ("tensorrt-rtx",)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a condition holds: the name of the node (or tensor), what it has, and a fix better than the row's."""

    node: str
    found: str
    fix: str = ""


Check = Callable[[Scene], Iterator[Spot]]


@dataclass(frozen=True, slots=True)
class Row:
    """A form that a target refuses or spoils.

    operator: "*" where it is not one operator's. when: the condition as a sentence; check: the condition as code.
    legalized: compile rewrites it (engines/legalize). runtimes: whose parser does so.
    """

    id: str
    operator: str
    when: str
    happens: str
    fix: str
    check: Check
    severity: Severity = "refused"
    legalized: bool = False
    runtimes: tuple[str, ...] = BOTH
