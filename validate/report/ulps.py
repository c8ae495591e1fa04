"""The report's figure of single elements: how many lie how many ulps from the truth, beside PyTorch's own."""

from typing import TYPE_CHECKING

from markupsafe import Markup

from ...core.evidence import ElementsRecord
from ...core.manifest import VariantRecord
from .figures import Size, both, figure, legend
from .svg import INK
from .view import judged_by, yardstick

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ulp_plots(variant: VariantRecord) -> dict[str, Markup]:
    """Output -> histogram of the verdict that speaks for the graph; none where no element was counted."""
    verdict = judged_by(variant)
    if verdict is None:
        return {}
    return {
        found.output: _plot(variant, number, found)
        for number, found in enumerate(verdict.elements)
        if sum(found.ulps.values())
    }


def bin_name(edges: list[str], number: int) -> str:
    """How a bin reads: `up to 0.5`, `1 to 2`, `over 1024`."""
    if number == 0:
        return f"up to {edges[0]}"
    if edges[number] == "more":
        return f"over {edges[number - 1]}"
    return f"{edges[number - 1]} to {edges[number]}"


def used(found: ElementsRecord) -> list[str]:
    """The edges up to the last bin that holds an element on either side."""
    edges = list(found.ulps)
    last = max(
        number
        for number, edge in enumerate(edges)
        if found.ulps[edge] or found.floor_ulps.get(edge)
    )
    return edges[: last + 1]


def _plot(variant: VariantRecord, number: int, found: ElementsRecord) -> Markup:
    edges = used(found)
    names = [bin_name(list(found.ulps), n) for n in range(len(edges))]
    label = (
        f"Share of the elements of {found.output} in {variant.precision} by their distance from the truth in ulps of "
        f"{found.dtype}. The numbers are in the table below."
    )

    def shares(counts: dict[str, int]) -> list[float]:
        total = sum(counts.values())
        return [100 * counts.get(edge, 0) / total for edge in edges] if total else []

    def draw(size: Size) -> "Figure":
        drawn, axes = figure(size, height=110 + 30 * len(edges))
        ours, floor = shares(found.ulps), shares(found.floor_ulps)
        high = 0.36 if floor else 0.6
        places = [n - (high / 2 if floor else 0) for n in range(len(edges))]
        axes.barh(places, ours, height=high, color=INK["first"], label=variant.precision)
        if floor:
            below = [n + high / 2 for n in range(len(edges))]
            name = f"PyTorch {yardstick(variant)} (noise floor)"
            axes.barh(below, floor, height=high, color=INK["floor"], label=name)
        axes.set_yticks(range(len(edges)), names, parse_math=False)
        axes.set_ylim(len(edges) - 0.5, -0.5)
        axes.grid(False, axis="y")
        axes.set_xlabel("% of the elements")
        legend(axes, columns=2 if size.width > 500 else 1)
        return drawn

    return both(draw, f"ulps-{variant.precision}-{number}", label)
