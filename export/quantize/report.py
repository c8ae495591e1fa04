"""What a quantisation did: per linear, and in sum."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..calibration.record import CalibrationRecord


@dataclass(frozen=True, slots=True)
class LinearRecord:
    """One linear. scale and amax: of its static activation (None: not quantised); weight_scales: smallest and
    largest; flops: share of the multiplications of all linears; error: relative error of its output on the
    calibration inputs, its inputs' errors included (None: not measured); reason: why it stayed high."""

    name: str
    size_in: int
    size_out: int
    flops: float
    format: str = ""
    scale: float | None = None
    amax: float | None = None
    observer: str = ""
    weight_scales: tuple[float, float] | None = None
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """One key-value cache in FP8: graph input and output, the scale of both, the largest magnitude that was seen."""

    past: str
    present: str
    scale: float
    amax: float


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """linears: in graph order; calibration: every static scale (None: nothing was calibrated); bytes: of all weights;
    packed: products that several linears became; caches: those now in FP8; epilogues: operators that quantise their own
    result, and how many; already: the file was quantised before, and nothing was left to do."""

    format: str
    rounding: str
    linears: tuple[LinearRecord, ...]
    calibration: CalibrationRecord | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    packed: int = 0
    caches: tuple[CacheRecord, ...] = ()
    epilogues: dict[str, int] = field(default_factory=dict)
    already: bool = False
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[LinearRecord, ...]:
        """The linears that were quantised."""
        return tuple(x for x in self.linears if not x.reason)

    @property
    def share_of_flops(self) -> float:
        """The quantised linears' share of the multiplications of all linears."""
        return sum(x.flops for x in self.quantized)

    def to_json(self) -> dict[str, Any]:
        """Everything as numbers, texts, lists and dictionaries."""
        head = {
            "num_linears": len(self.linears),
            "num_quantized": len(self.quantized),
            "share_of_flops": self.share_of_flops,
        }
        found = head | asdict(self)
        found["calibration"] = self.calibration and self.calibration.model_dump(mode="json")
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain
