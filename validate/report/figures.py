"""What the report's figures share: two sizes of each, quiet axes, a legend outside.

One unit of a drawing is one CSS pixel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from .numbers import short
from .svg import INK, PIXELS_PER_INCH, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Size:
    """Width in CSS pixels and the class that shows or hides the drawing."""

    width: int
    css_class: str
    font: int


SIZES = (Size(960, "plot wide", 13), Size(360, "plot narrow", 12))


def both(draw: "Callable[[Size], Figure]", name: str, label: str) -> Markup:
    """The drawing in both sizes, as inline SVG; `label` is read out instead of it."""
    parts = []
    for number, size in enumerate(SIZES):
        parts.append(
            inline_svg(draw(size), name=f"{name}-{number}", label=label, css_class=size.css_class)
        )
    return Markup("").join(parts)


def figure(size: Size, *, height: int) -> "tuple[Figure, Axes]":
    """An empty figure of the page's width and `height` in CSS pixels, with quiet axes."""
    from matplotlib.figure import Figure

    inches = (size.width / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    made = Figure(figsize=inches, dpi=PIXELS_PER_INCH, layout="constrained")
    axes = made.subplots()
    axes.tick_params(colors=INK["soft"], labelsize=size.font, length=0, pad=6, which="both")
    axes.xaxis.label.set(color=INK["soft"], fontsize=size.font)
    axes.grid(True, color=INK["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK["grid"])
    return made, axes


def log_scale(axes: "Axes") -> None:
    """A log y axis over a decade or more, with labels like the tables': 1e-6, not powers in small print."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 10 * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
        axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 1e3 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value, "tick")))


def legend(axes: "Axes", *, columns: int) -> None:
    """The legend above the axes."""
    made = axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper left", ncols=columns, frameon=False,
        fontsize=axes.xaxis.label.get_fontsize(), labelcolor=INK["ink"], handlelength=1.6,
        columnspacing=1.6, borderaxespad=0.2,
    )  # fmt: skip
    texts: Sequence = made.get_texts()
    for text in texts:
        text.set_parse_math(False)
