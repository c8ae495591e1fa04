"""How numbers look on the page: short for the eye, exact in the `value` attribute of the element.

number(0.000412817, "sci") -> <data value="0.000412817">4.13e-4</data>
"""

import math
from collections.abc import Callable

from markupsafe import Markup

UNITS = ("B", "KB", "MB", "GB", "TB")


def number(value: float | int | None, kind: str = "general") -> Markup:
    """A number of the manifest as HTML; a dash where there is none. Raises KeyError for an unknown kind."""
    if value is None:
        return Markup('<span class="none" aria-label="none">–</span>')
    return Markup('<data value="{}">{}</data>').format(exact(value), short(value, kind))


def exact(value: float | int) -> str:
    """The value as the manifest's JSON spells it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def short(value: float | int, kind: str) -> str:
    """The value for the eye."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return _KINDS[kind](value).replace("-", "−")


def _scientific(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _tick(value: float) -> str:
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _general(value: float) -> str:
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:,.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else _scientific(value)


def _bytes(value: float) -> str:
    unit = 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {UNITS[unit]}" if unit else f"{value:.0f} {UNITS[0]}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {value % 60:.0f} s"


_KINDS: dict[str, Callable[[float], str]] = {
    "general": _general,
    "gate": lambda v: f"{v:.6g}",
    "element": lambda v: f"{v:.8g}",
    "sci": _scientific,
    "ratio": lambda v: f"{v:.3g}×" if v < 1000 else f"{_scientific(v)}×",
    "share": lambda v: f"{100 * v:.2f} %",
    "cosine": lambda v: f"{v:.7f}",
    "perplexity": lambda v: f"{v:,.3f}" if v < 1e6 else _scientific(v),
    "bytes": _bytes,
    "seconds": _seconds,
    "tick": _tick,
    "count": lambda v: f"{v:,g}",
}
