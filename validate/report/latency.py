"""The report's figures of time: how the rounds of each side scatter, and how much of the roofline is reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from pydantic import ValidationError

from ...core.bundle import sha256_of
from ...core.errors import ArtefactError
from ...core.manifest import Manifest
from ..latency.record import BenchRecord, LatencyRecord
from .figures import Size, both, figure, legend
from .svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 48
COLOURS = {"subject": "first", "baseline": "second"}


@dataclass(frozen=True, slots=True)
class LatencyView:
    """A benchmark as the page shows it. plots: by size. changed: sides whose files are no longer those that ran."""

    record: BenchRecord
    plots: tuple[tuple[str, Markup], ...]
    roofline: Markup | None
    changed: tuple[str, ...]


def latency_view(folder: Path, manifest: Manifest) -> LatencyView | None:
    """The benchmark that the bundle keeps, None where it keeps none; ArtefactError where its file is damaged."""
    if manifest.bench is None:
        return None
    record = read_bench(folder / manifest.bench)
    by_size: dict[str, list[LatencyRecord]] = {}
    for row in record.latencies:
        by_size.setdefault(size_name(row), []).append(row)
    plots = tuple(
        (size, _scatter(number, size, rows)) for number, (size, rows) in enumerate(by_size.items())
    )
    reached = [row for row in record.latencies if row.roofline is not None]
    return LatencyView(record, plots, _bars(reached), tuple(_changed(folder, manifest, record)))


def read_bench(path: Path) -> BenchRecord:
    """The record at `path`; ArtefactError says what does not fit."""
    try:
        return BenchRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        found = " ".join(str(error).split())[:200]
        fix = "Measure again: blockforge bench BUNDLE --save"
        raise ArtefactError(f"latencies {path}", found=found, fix=fix) from None


def size_name(row: LatencyRecord) -> str:
    """`batch 1, sequence 128`."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in row.sizes.items())
    return sizes or "fixed sizes"


def _changed(folder: Path, manifest: Manifest, record: BenchRecord) -> list[str]:
    """Sides of this bundle whose graph or engine has other bytes now."""
    paths = {
        f"{variant.precision} {engine.target}": engine.path or variant.model
        for variant in manifest.variants
        for engine in variant.engines
    }
    changed = []
    for side, known in record.files.items():
        path = paths.get(side.removesuffix(", CUDA graph"))
        if path is not None and (folder / path).is_file() and sha256_of(folder / path) != known:
            changed.append(side)
    return changed


def _scatter(number: int, size_text: str, rows: Sequence[LatencyRecord]) -> Markup:
    label = f"How the rounds scatter at {size_text}: one row a side, with its median. The numbers are in the table below."

    def draw(size: Size) -> "Figure":
        drawn, axes = figure(size, height=84 + 46 * len(rows))
        times = [t for row in rows for t in row.rounds]
        edges = np.linspace(min(times), max(times) * (1 + 1e-9) + 1e-12, BINS + 1)
        for place, row in enumerate(rows):
            counts, _ = np.histogram(row.rounds, edges)
            heights = 0.72 * np.append(counts, 0) / max(1, counts.max())
            colour = INK[COLOURS[row.role]]
            axes.fill_between(
                edges, place + 0.36, place + 0.36 - heights, step="post", color=colour, alpha=0.45,
                linewidth=0,
            )  # fmt: skip
            axes.plot(
                [row.median] * 2, [place - 0.4, place + 0.4], color=colour, linewidth=2.4,
                label="median" if place == 0 else None,
            )  # fmt: skip
            marks = [p for p in (row.p90, row.p99) if p is not None and p <= edges[-1]]
            axes.plot(
                marks, [place + 0.2] * len(marks), "|", color=INK["soft"], markersize=11,
                label="p90, p99 of the calls" if place == 0 and marks else None,
            )  # fmt: skip
        axes.set_yticks(
            range(len(rows)), [_short(row.side, size) for row in rows], parse_math=False
        )
        axes.set_ylim(len(rows) - 0.5, -0.55)
        axes.grid(False, axis="y")
        axes.set_xlabel("milliseconds")
        legend(axes, columns=2)
        return drawn

    return both(draw, f"latency-{number}", label)


def _bars(rows: Sequence[LatencyRecord]) -> Markup | None:
    """The least time that the GPU allows over the median, of the sides that ran on one."""
    if not rows:
        return None
    label = "Share of the roofline that each side reaches. The numbers are in the table below."

    def draw(size: Size) -> "Figure":
        drawn, axes = figure(size, height=84 + 30 * len(rows))
        for place, row in enumerate(rows):
            assert row.roofline is not None
            colour = INK[COLOURS[row.role]]
            axes.barh([place], [100 * row.roofline], height=0.6, color=colour)
        axes.axvline(100, color=INK["limit"], linewidth=1.6, linestyle="--", label="roofline")
        names = [f"{_short(row.side, size)}\n{size_name(row)}" for row in rows]
        axes.set_yticks(range(len(rows)), names, parse_math=False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, max(105, *(105 * (row.roofline or 0) for row in rows)))
        axes.grid(False, axis="y")
        axes.set_xlabel("% of what the GPU's peak rates and bandwidth allow")
        legend(axes, columns=1)
        return drawn

    return both(draw, "roofline", label)


def _short(side: str, size: Size) -> str:
    """A label that leaves the drawing room: words on lines of their own where the page is narrow."""
    if size.width > 500:
        return side if len(side) <= 44 else "…" + side[-43:]
    words = side.replace(": ", " ").split(" ")
    lines = [word if len(word) <= 18 else "…" + word[-17:] for word in words]
    return "\n".join(lines[-3:])
