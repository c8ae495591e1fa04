"""What preflight finds: one reason why a target refuses a model, or silently makes something else of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["refused", "silent", "note"]
"""refused: no engine comes of it. silent: one does, and it computes something else. note: worth knowing."""

ORDER: tuple[Severity, ...] = ("refused", "silent", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. node: the node, tensor or input concerned; rule: the row of the table; happens: what the target would
    do; legalized: whether `compile` rewrites the form, so that nothing needs to be done."""

    rule: str
    node: str
    severity: Severity
    found: str
    happens: str
    fix: str
    legalized: bool = False

    @property
    def fails(self) -> bool:
        """Whether the engine would not come, or would not be what the model says."""
        return self.severity != "note" and not self.legalized

    def __str__(self) -> str:
        return f"{self.node}: {self.found} [{self.rule}]. {self.happens}"

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"fails": self.fails}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that preflight found about one model on one target.

    table: the runtime and version that the rules of operator forms were measured on. installed: the version here, None
    without the runtime. seconds: how long it took.
    """

    model: str
    target: str
    table: str
    installed: str | None
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that nothing takes care of."""
        return tuple(finding for finding in self.findings if finding.fails)

    @property
    def passed(self) -> bool:
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "model": self.model,
            "target": self.target,
            "table": self.table,
            "installed": self.installed,
            "passed": self.passed,
            "seconds": round(self.seconds, 4),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Without repetitions, the worst first: failures, then by severity, each in the order of the graph."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda f: (not f.fails, ORDER.index(f.severity))))
