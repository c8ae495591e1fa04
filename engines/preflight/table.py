"""Which rules hold for which runtime and version, and running them over a graph.

A row was seen to hold on the version its table names (tests/engines/test_preflight_table.py builds each form both ways).
Full TensorRT 11 shares the parser's source; its rows have not been run on its own builder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import onnx_ir as ir

from ..target import Target
from . import attention, forms, norms, numerics, operators, quantize, types
from .finding import Finding
from .parser_operators import VERSION
from .row import Row, Spot
from .scene import Scene

ROWS: tuple[Row, ...] = (
    *operators.ROWS,
    *forms.ROWS,
    *types.ROWS,
    *attention.ROWS,
    *norms.ROWS,
    *quantize.ROWS,
    *numerics.ROWS,
)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one runtime. measured: the version they were run on, None where they were not run."""

    runtime: str
    distribution: str
    written_for: str
    measured: str | None

    @property
    def title(self) -> str:
        """What a report says: `tensorrt-rtx 1.7`."""
        return f"{self.runtime} {self.written_for}"

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in ROWS if self.runtime in row.runtimes)

    @property
    def binding(self) -> bool:
        """Whether what the rows refuse is known to be refused here, so that compile may stop before the builder starts."""
        here = installed_version(self.distribution)
        return (
            self.measured is not None and here is not None and _minor(here) == _minor(self.measured)
        )


TABLES = {
    "tensorrt-rtx": Table("tensorrt-rtx", "tensorrt-rtx", "1.7", VERSION),
    "tensorrt": Table("tensorrt", "tensorrt", "11", None),
    "onnxruntime": Table("onnxruntime", "onnxruntime", "any", None),
}


def table_for(target: Target) -> Table:
    """The table of the target's runtime."""
    return TABLES[target.runtime]


def installed_version(distribution: str) -> str | None:
    """The version installed here, without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def spots(scene: Scene, rows: tuple[Row, ...]) -> Iterator[tuple[Row, Spot]]:
    """Every place in the graph where a row holds."""
    for row in rows:
        for spot in row.check(scene):
            yield row, spot


def findings(model: ir.Model, legal: ir.Model | None, target: Target) -> Iterator[Finding]:
    """What the target's rows find in `model`, and what they still find in its legalised copy (None: there is none)."""
    rows = table_for(target).rows
    left = [(r, s) for r, s in spots(Scene(legal, target), rows)] if legal is not None else []
    remaining = {(row.id, spot.node) for row, spot in left}
    by_rule: dict[str, list[str]] = {}
    for rule, node in remaining:
        by_rule.setdefault(rule, []).append(node)
    told: set[tuple[str, str]] = set()
    for row, spot in spots(Scene(model, target), rows):
        same = [
            n for n in by_rule.get(row.id, ()) if n == spot.node or n.startswith(f"{spot.node}/")
        ]
        told |= {(row.id, n) for n in same}
        yield _finding(row, spot, legal is not None and not same)
    for row, spot in left:
        if (row.id, spot.node) not in told:
            yield _finding(row, spot, legalized=False)


def _finding(row: Row, spot: Spot, legalized: bool) -> Finding:
    return Finding(
        row.id, spot.node, row.severity, spot.found, row.happens, spot.fix or row.fix, legalized
    )  # fmt: skip


def _minor(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")[:2])
