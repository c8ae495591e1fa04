"""Prefill and decode of one preset side by side, with the batch from which a sub-layer computes.

compute-bound  <=>  FLOPs / peak > bytes / bandwidth;  more sequences share each weight that is read
"""

from dataclasses import dataclass
from typing import Any

from ...core.errors import UsageError
from ..config import ModelConfig
from ..gpus import Gpu
from ..presets import PRESETS
from .count import cost
from .parts import SubLayer
from .result import Cost

_MOST_SEQUENCES = 2**16


@dataclass(frozen=True, slots=True)
class CostReport:
    """Both passes of one preset; decode is None for an encoder.

    compute_bound_batch: for each sub-layer with matrix products the smallest batch at which decoding is bound by
    compute, None where no batch up to 65536 is (attention: every sequence brings a cache of its own).
    """

    preset: str
    prefill: Cost
    decode: Cost | None
    compute_bound_batch: dict[SubLayer, int | None]

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types: the prefill's numbers, and the decoding pass under `decode`."""
        bounds = {name.value: batch for name, batch in self.compute_bound_batch.items()}
        return {
            "preset": self.preset,
            **self.prefill.as_dict(),
            "decode": None if self.decode is None else self.decode.as_dict(),
            "compute_bound_batch": bounds,
        }


def cost_report(
    preset: str, *, batch: int = 1, sequence: int = 1024, dtype: str = "bf16", gpu: str = "h100-sxm"
) -> CostReport:
    """Prefill and decode of the preset; UsageError as for `cost`, and for an unknown preset."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"preset {preset!r}", found="no such preset", fix=f"Known: {known}")
    config = PRESETS[preset]
    prefill = cost(config, batch=batch, sequence=sequence, dtype=dtype, gpu=gpu)
    if not config.attention.causal:
        return CostReport(preset, prefill, None, {})
    decode = cost(config, batch=batch, sequence=sequence, dtype=dtype, gpu=gpu, mode="decode")
    bounds = {
        row.name: compute_bound_batch(
            config, row.name, sequence=sequence, dtype=dtype, gpu=prefill.gpu
        )
        for row in decode.rows
        if row.flops
    }
    return CostReport(preset, prefill, decode, bounds)


def compute_bound_batch(
    config: ModelConfig, sub_layer: SubLayer, *, sequence: int, dtype: str, gpu: Gpu
) -> int | None:
    """The smallest batch at which `sub_layer` is compute-bound in decoding, None if none up to 65536 is.

    Bisection: FLOPs grow with the batch, bytes no faster.
    """

    def computes(batch: int) -> bool:
        passed = cost(config, batch=batch, sequence=sequence, dtype=dtype, gpu=gpu, mode="decode")
        return passed.row(sub_layer).bound == "compute"

    low, high = 0, _MOST_SEQUENCES
    if not computes(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high
