"""What typing a graph did: where each value stands, what was scaled, and what had to stay wide."""

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Literal

Source = Literal["measured", "measured where finite", "bound"]
_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[./_](\d+)(?:[./_]|$)")


@dataclass(frozen=True, slots=True)
class Headroom:
    """How far one 16-bit value stays below the type's largest number, in bits (negative: it would overflow).

    largest: magnitude the graph must hold before any scaling. source: "measured" (calibration, margin excluded),
    "measured where finite" (the same, but a mask left -inf or NaN among the numbers) or "bound" (algebra, which needs
    no calibration). dtype: what the value is in the typed graph.
    """

    layer: int | None
    value: str
    largest: float
    source: Source
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
class Migrated:
    """Channels that are held as number * 2^-e, each with an exponent e of its own, in all values that carry them.

    channels: how many have one. exponents: the smallest and the largest. because, largest: as in Scaled.
    """

    channels: int
    exponents: tuple[int, int]
    because: str
    largest: float
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByChannel:
    """One axis of a weight: place -> e, stored as number * 2^-e; places that are left out have e = 0."""

    axis: int
    exponents: dict[int, int]


@dataclass(frozen=True, slots=True)
class Wide:
    """A node that stays wide although its operator could be 16 bit, and the reason."""

    node: str
    operator: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A value of the FP32 graph with numbers that are not finite although its node's inputs are, and no mask's doing.

    feed: of the calibration, counted from 1, the first that showed it. nan, infinite: how many of its `size` numbers.
    """

    value: str
    node: str
    operator: str
    feed: int
    nan: int
    infinite: int
    size: int

    def __str__(self) -> str:
        kinds = [f"{n} {kind}" for n, kind in ((self.nan, "NaN"), (self.infinite, "infinite")) if n]
        return (
            f"{self.value} (node {self.node}, {self.operator}) is not finite in FP32: {', '.join(kinds)} of "
            f"{self.size} numbers, feed {self.feed}; its range is unknown, and that of what follows from it"
        )


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
    number * 2^-e (exact but for subnormals). streams: why. by_channel: the same for weights that hold exponents by
    channel, which add up over axes and with `scaled`; migrated: why. inserted: values multiplied by a new 2^-e node.
    attributes: epsilons and scales that changed with them. masks: constants moved into the type's limits.
    islands: what no rule asks to be wide, only its range. wide_nodes: nodes wide by rule, by reason.
    unproved: 16-bit values with neither a measured nor a bounded range, or with numbers that are not finite.
    nonfinite: where these begin. notes: what could not be helped.
    """

    precision: str
    already: str | None = None
    nodes: int = 0
    low_nodes: int = 0
    casts: int = 0
    scaled: dict[str, int] = field(default_factory=dict)
    streams: list[Scaled] = field(default_factory=list)
    by_channel: dict[str, list[ByChannel]] = field(default_factory=dict)
    migrated: list[Migrated] = field(default_factory=list)
    inserted: dict[str, int] = field(default_factory=dict)
    attributes: list[Change] = field(default_factory=list)
    masks: list[Change] = field(default_factory=list)
    islands: list[Wide] = field(default_factory=list)
    wide_nodes: dict[str, int] = field(default_factory=dict)
    headroom: list[Headroom] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    nonfinite: list[NonFinite] = field(default_factory=list)
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
