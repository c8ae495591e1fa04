"""What a linear costs in a format, by the roofline of a GPU: the longer of arithmetic and memory traffic.

    seconds = max(2 tokens in out / peak, (in out + tokens (in + out)) bytes / bandwidth)

Source: Williams et al., "Roofline" (2009); peaks and bandwidths are the data sheets' (model/gpus.py).
"""

from dataclasses import dataclass

from ...core.errors import UsageError
from ...model.gpus import GPUS, Gpu
from ..linears.find import Linear

WEIGHT_BYTES = {
    "fp8": 1.0, "fp8-weights": 1.0, "int8-weights": 1.0, "int4-weights": 0.5,
    "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
PEAKS = {"fp8": "fp8_e4m3"}  # the other formats store weights only, and multiply in 16 bits


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times of linears that see `tokens` rows on `gpu`."""

    gpu: Gpu
    tokens: int

    def seconds(self, linear: Linear, form: str) -> float:
        """The least time of one linear in a quantised format, or in a 16-bit type by its name.

        Activations move in two bytes, in one where the format quantises them.
        """
        size = linear.size_in * linear.size_out
        eight = form in PEAKS
        peak = self.gpu.peak(PEAKS[form] if eight else "fp16")
        moved = size * WEIGHT_BYTES.get(form, 2.0)
        moved += self.tokens * (linear.size_in * (1 if eight else 2) + linear.size_out * 2)
        return max(2 * self.tokens * size / peak, moved / self.gpu.bandwidth)


def roofline(gpu: str, tokens: int) -> Roofline:
    """The roofline of a GPU by name; UsageError lists the names."""
    if gpu not in GPUS:
        raise UsageError(f"GPU {gpu!r}", found="unknown", fix=f"Known: {', '.join(GPUS)}")
    if tokens < 1:
        raise UsageError(f"{tokens} tokens", found="less than one", fix="Give batch x sequence")
    return Roofline(GPUS[gpu], tokens)
