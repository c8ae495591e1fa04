"""What typing a graph did: where each value stands, what was scaled, and what had to stay wide."""

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Literal

_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[./_](\d+)(?:[./_]|$)")


@dataclass(frozen=True, slots=True)
class Headroom:
    """How far one 16-bit value stays below the type's largest number, in bits (negative: it would overflow).

    largest: magnitude the graph must hold before any scaling. source: "measured" (calibration, margin excluded) or
    "bound" (algebra, which needs no calibration). dtype: what the value is in the typed graph.
    """

    layer: int | None
    value: str
    largest: float
    source: Literal["measured", "bound"]
    before: float
    after: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """A stream of values held as value * 2^-exponent: its largest member, why, and all members."""

    exponent: int
    because: str
    largest: float
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """A node that stays wide although its operator could be 16 bit, and the reason."""

    node: str
    operator: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """A number of the graph that is another now: an epsilon, a mask's constant, an attribute."""

    where: str
    before: float
    after: float


@dataclass(slots=True)
class PrecisionReport:
    """The outcome for one model.

    already: the type that the graph had before; nothing was done then. scaled: initializer -> e, stored as
    number * 2^-e (exact but for subnormals). streams: why. inserted: values multiplied by a new 2^-e node.
    attributes: epsilons and scales that changed with them. masks: constants moved into the type's limits.
    islands: what no rule asks to be wide, only its range. wide_nodes: nodes wide by rule, by reason.
    unproved: 16-bit values with neither a measured nor a bounded range.
    """

    precision: str
    already: str | None = None
    nodes: int = 0
    low_nodes: int = 0
    casts: int = 0
    scaled: dict[str, int] = field(default_factory=dict)
    streams: list[Scaled] = field(default_factory=list)
    inserted: dict[str, int] = field(default_factory=dict)
    attributes: list[Change] = field(default_factory=list)
    masks: list[Change] = field(default_factory=list)
    islands: list[Wide] = field(default_factory=list)
    wide_nodes: dict[str, int] = field(default_factory=dict)
    headroom: list[Headroom] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Plain data; an infinite headroom (a value that is always 0) is None."""
        plain = asdict(self)
        for row in plain["headroom"]:
            for key in ("before", "after"):
                row[key] = round(row[key], 3) if math.isfinite(row[key]) else None
        return plain


def layer_of(name: str) -> int | None:
    """The number of the layer in a value's or node's name: layers.3.mlp -> 3."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None
