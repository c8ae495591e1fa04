"""matplotlib Figure -> SVG text to put into a page: no outside reference, colours and fonts from the page's CSS.

Figures draw with the names in INK; each becomes `var(--plot-...)`, so one drawing serves light and dark.
"""

import io
import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that no figure would choose by chance -> CSS variables of the page.
INK = {
    "ink": "#010203",
    "soft": "#010204",
    "grid": "#010205",
    "floor": "#010206",
    "first": "#010207",
    "second": "#010208",
    "limit": "#010209",
}
PIXELS_PER_INCH = 72  # the SVG backend's unit: one user unit is one CSS pixel at full width


def inline_svg(figure: "Figure", *, name: str, label: str, css_class: str) -> Markup:
    """Render `figure` for use inside HTML.

    name: prefix that keeps its ids apart from other figures'; label: what a screen reader says.
    """
    import matplotlib

    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=metadata, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href=", "href=")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", text)
    for variable, colour in INK.items():
        text = text.replace(colour, f"var(--plot-{variable})")
    opening = f'<svg class="{escape(css_class)}" role="img" aria-label="{escape(label)}" '
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    text = opening + view[0] + text[text.index(">") :]
    return Markup(re.sub(r"\s*\n\s*", "\n", text))
