"""The report's figures: error by layer beside the noise floor, and error over floor by case.

Each is drawn twice, for wide and for narrow pages.
"""

import math
import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from ...core.manifest import VariantRecord, VerdictRecord
from .figures import Size, both, figure, legend, log_scale
from .svg import INK
from .view import yardstick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVER_FLOOR = ": error over floor"  # how the gate of an output is called
ALL = "all cases"
SEED = re.compile(r", seed \d+$")
SERIES = ("first", "second")  # colours of the runners, in the order of the verdicts
MARKS = ("o", "D")


def layer_plots(variant: VariantRecord) -> Markup | None:
    """Relative error of every layer's output, for runners that show them; None without any."""
    shown = [v for v in variant.verdicts if len(v.layer_names) > 1 and _drawable(v)]
    if not shown:
        return None
    label = (
        f"Error of each layer's output in {variant.precision}, relative to the float64 truth, beside "
        f"what PyTorch loses in {yardstick(variant)}. The numbers are in the table below."
    )

    def draw(size: Size) -> "Figure":
        from matplotlib.ticker import MaxNLocator

        drawn, axes = figure(size, height=280)
        layers = range(len(shown[0].layer_names))
        floor_label = f"PyTorch {yardstick(variant)} (noise floor)"
        axes.plot(
            layers, shown[0].layer_floors, color=INK["floor"], linewidth=5, label=floor_label,
            solid_capstyle="round",
        )  # fmt: skip
        for verdict, colour, mark in zip(shown, SERIES, MARKS, strict=False):
            axes.plot(
                range(len(verdict.layer_errors)), verdict.layer_errors, color=INK[colour],
                linewidth=1.6, marker=mark, markersize=4, label=verdict.runner,
            )  # fmt: skip
        log_scale(axes)
        axes.set_xlabel("decoder layer")
        axes.set_title("relative error", loc="left", fontsize=size.font, color=INK["soft"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes, columns=2 if size.width > 500 else 1)
        return drawn

    return both(draw, f"layers-{variant.precision}", label)


def ratio_plots(variant: VariantRecord) -> Markup | None:
    """Error over floor of every case and runner, with the limit; None where no ratio is a number."""
    verdicts = [v for v in variant.verdicts if v.outputs]
    found = [_ratios(verdict) for verdict in verdicts]
    rows = sorted(
        dict.fromkeys(row for ratios in found for row in ratios), key=lambda r: r[1] != ALL
    )
    ratios = [ratio for by_row in found for some in by_row.values() for ratio in some]
    if not ratios:
        return None
    limits = [g.limit for v in verdicts for g in v.gates if g.name.endswith(OVER_FLOOR)]
    label = (
        f"Error of each case in {variant.precision} divided by what PyTorch loses in "
        f"{yardstick(variant)}. The numbers are in the table below."
    )

    def draw(size: Size) -> "Figure":
        drawn, axes = figure(size, height=96 + 34 * len(rows))
        axes.axvline(1.0, color=INK["floor"], linewidth=5, label="noise floor", zorder=1)
        if limits:
            axes.axvline(
                min(limits), color=INK["limit"], linewidth=1.6, linestyle="--", label="limit"
            )
        for by_row, verdict, colour, mark in zip(found, verdicts, SERIES, MARKS, strict=False):
            dots = [(ratio, rows.index(row)) for row, some in by_row.items() for ratio in some]
            axes.plot(
                [ratio for ratio, _ in dots], [place for _, place in dots], mark, color=INK[colour],
                markersize=8, markerfacecolor="none" if colour == "second" else INK[colour],
                markeredgewidth=1.8, label=verdict.runner, zorder=3,
            )  # fmt: skip
        one_output = len({output for output, _ in rows}) == 1
        names = [
            case if one_output and case else f"{output} {case}".strip() for output, case in rows
        ]
        axes.set_yticks(range(len(rows)), names, parse_math=False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        if max(ratios) > 20:
            axes.set_xscale("log")
        else:
            axes.set_xlim(0, 1.08 * max([*ratios, *limits[:1], 1.0]))
        legend(axes, columns=4 if size.width > 500 else 2)
        return drawn

    return both(draw, f"ratios-{variant.precision}", label)


def _ratios(verdict: VerdictRecord) -> dict[tuple[str, str], list[float]]:
    """(output, case) -> error over floor, where it is a number; all cases together where a gate says it.

    Cases that differ in their seed alone share a row.
    """
    pooled = [
        (g.name.removesuffix(OVER_FLOOR), ALL, g.value)
        for g in verdict.gates
        if g.name.endswith(OVER_FLOOR)
    ]
    each = [(e.output, SEED.sub("", e.case), e.ratio) for e in verdict.outputs]
    found: dict[tuple[str, str], list[float]] = {}
    for output, case, ratio in (*pooled, *each):
        if math.isfinite(ratio):
            found.setdefault((output, case), []).append(ratio)
    return found


def _drawable(verdict: VerdictRecord) -> bool:
    """Whether a log axis can show the layers: some of the errors are numbers above zero."""
    return any(0 < e < math.inf for e in (*verdict.layer_errors, *verdict.layer_floors))
