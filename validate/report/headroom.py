"""The report's figure of range: how far each layer stays below the largest 16-bit number, before and after scaling."""

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from ...core.manifest import VariantRecord
from .figures import Size, both, figure, legend
from .svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def headroom_plots(variant: VariantRecord) -> Markup | None:
    """Bits below overflow of each layer's tightest value; None where fewer than two layers were measured."""
    rows = variant.typing.headroom if variant.typing else ()
    shown = [r for r in rows if r.layer is not None and math.isfinite(r.before + r.after)]
    if len(shown) < 2:
        return None
    label = (
        f"Headroom of each layer's tightest value in {variant.computes}, in bits, before and after scaling by "
        "powers of two. The numbers are in the table below."
    )

    def draw(size: Size) -> "Figure":
        from matplotlib.ticker import MaxNLocator

        drawn, axes = figure(size, height=280)
        layers = [row.layer for row in shown if row.layer is not None]
        axes.axhline(0, color=INK["limit"], linewidth=1.6, linestyle="--", label="overflow")
        for key, colour, mark in (("before", "second", "D"), ("after", "first", "o")):
            axes.plot(
                layers, [getattr(row, key) for row in shown], color=INK[colour], linewidth=1.6,
                marker=mark, markersize=4, label=f"{key} scaling",
            )  # fmt: skip
        axes.set_xlabel("decoder layer")
        axes.set_title("bits of headroom", loc="left", fontsize=size.font, color=INK["soft"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes, columns=3 if size.width > 500 else 2)
        return drawn

    return both(draw, f"headroom-{variant.precision}", label)
