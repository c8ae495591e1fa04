"""How an FP32 graph became a typed or quantised one, as records of the manifest."""

from pydantic import Field

from .records import DTypeName, Record


class HeadroomRecord(Record):
    """The 16-bit value of one layer that comes closest to the type's largest number.

    before, after: bits between the two before and after scaling (negative: it would overflow); largest: its
    magnitude in the FP32 graph; dtype: its type in the typed graph.
    """

    layer: int | None
    value: str
    largest: float
    before: float
    after: float
    dtype: str


class AxisExponents(Record):
    """One axis of an initializer: place -> e, stored as its numbers times 2^-e; a place that is left out has none."""

    axis: int
    exponents: dict[int, int]


class TypingRecord(Record):
    """How the FP32 graph became a 16-bit one.

    exponents: initializer -> e, stored as its number times 2^-e. by_channel: those with exponents of their own along
    an axis or two, which add up. changes, islands: one line each, what moved with the exponents, and what had
    to stay wide and why. warnings: values whose range is unknown, and losses that stay. headroom: the tightest value of each layer.
    """

    exponents: dict[str, int] = Field(default_factory=dict)
    by_channel: dict[str, tuple[AxisExponents, ...]] = Field(default_factory=dict)
    changes: tuple[str, ...] = ()
    islands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    headroom: tuple[HeadroomRecord, ...] = ()


class LinearRecord(Record):
    """One quantised product, or one left alone and why.

    share: of the FLOPs of all linears. scale: of its input, None where the input is not quantised.
    """

    name: str
    format: str
    share: float
    amax: float | None = None
    scale: float | None = None
    kept: str | None = None


class CacheRecord(Record):
    """One key-value cache in FP8 (E4M3): the graph input `past` and output `present` hold numbers over `scale`."""

    past: str
    present: str
    scale: float
    amax: float


class QuantizationRecord(Record):
    """How weights and activations came below 16 bits: what was read, how it was rounded, each linear and cache.

    epilogues: operators that quantise their own result, and how many of each.
    """

    format: str
    base: DTypeName
    observer: str
    rounding: str
    calibration: str
    tokens: int
    quantized_share: float  # of the linears' FLOPs
    search: tuple[
        str, ...
    ] = ()  # the budget, then each linear that stays high for it: what it gains and costs
    linears: tuple[LinearRecord, ...]
    caches: tuple[CacheRecord, ...] = ()
    epilogues: dict[str, int] = Field(default_factory=dict)
