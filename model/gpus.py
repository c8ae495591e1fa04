"""Published limits of named GPUs: matrix products per second, memory bandwidth, memory size.

    seconds >= max(FLOPs / peak, bytes / bandwidth)      (roofline: Williams et al. 2009, doi 10.1145/1498765.1498785)

Peaks are dense (NVIDIA's data sheets print the figure with 2:4 sparsity, twice as high, for the newer GPUs) and,
where a GPU distinguishes, with FP32 accumulation. `fp32` is the CUDA cores' rate, every other type the tensor cores'.
"""

from dataclasses import dataclass

from ..core.errors import UsageError

_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. peaks: FLOP/s by number format; bandwidth: bytes/s; memory: bytes; arch: compute capability."""

    name: str
    arch: str
    peaks: dict[str, float]
    bandwidth: float
    memory: float
    source: str

    def peak(self, number_format: str) -> float:
        """FLOP/s of matrix products in `number_format`; UsageError where the GPU has none."""
        if number_format not in self.peaks:
            known = ", ".join(self.peaks)
            raise UsageError(
                f"dtype {number_format} on {self.name}",
                found=f"its {self.arch} tensor cores have no such type",
                fix=f"It has: {known}",
            )
        return self.peaks[number_format]


def _gpu(
    name: str,
    arch: str,
    tera: tuple[float, float, float, float | None],  # fp32, tf32, fp16 and bf16, fp8
    memory: tuple[float, float],  # GB/s, GB
    source: str,
) -> Gpu:
    fp32, tf32, half, fp8 = tera
    found = {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half, "fp8_e4m3": fp8}
    peaks = {dtype: rate * _TERA for dtype, rate in found.items() if rate is not None}
    bandwidth, size = memory
    return Gpu(name, arch, peaks, bandwidth * _GIGA, size * _GIGA, source)


_A100 = "NVIDIA A100 data sheet (nvidia-a100-datasheet-us-nvidia-1758950-r4) and Ampere whitepaper"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of peak rates; H100 data sheet"
_ADA = "NVIDIA Ada GPU Architecture whitepaper v2, appendix A (rates with FP32 accumulation)"

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40", "sm80", (19.5, 156, 312, None), (1555, 40), _A100),
        _gpu("a100-80", "sm80", (19.5, 156, 312, None), (2039, 80), _A100 + " (SXM)"),
        _gpu("a100-80-pcie", "sm80", (19.5, 156, 312, None), (1935, 80), _A100),
        _gpu("h100-sxm", "sm90", (66.9, 494.7, 989.4, 1978.9), (3350, 80), _H100),
        _gpu("h100-pcie", "sm90", (51.2, 378, 756.5, 1513), (2000, 80), _H100),
        _gpu(
            "h200",
            "sm90",
            (66.9, 494.7, 989.4, 1978.9),
            (4800, 141),
            "NVIDIA H200 data sheet (rates of the H100 SXM; 141 GB of HBM3e at 4.8 TB/s)",
        ),
        _gpu(
            "b200",
            "sm100",
            (80, 1100, 2250, 4500),
            (8000, 180),
            "NVIDIA Blackwell Architecture technical brief, HGX B200 at 1000 W, one GPU of eight",
        ),
        _gpu(
            "l4",
            "sm89",
            (30.3, 60, 121, 242.5),
            (300, 24),
            "NVIDIA L4 data sheet (halved: it prints sparse rates)",
        ),
        _gpu("l40s", "sm89", (91.6, 183, 362.05, 733), (864, 48), "NVIDIA L40S data sheet"),
        _gpu("rtx-4090", "sm89", (82.6, 82.6, 165.2, 330.3), (1008, 24), _ADA),
        _gpu(
            "rtx-5090",
            "sm120",
            (104.8, 104.8, 209.5, 419),
            (1792, 32),
            "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A (rates with FP32 accumulation)",
        ),
    )
}


def gpu_from_name(name: str) -> Gpu:
    """The GPU called `name`; UsageError lists the names."""
    if name not in GPUS:
        known = ", ".join(GPUS)
        raise UsageError(f"GPU {name!r}", found="no such GPU in the table", fix=f"Known: {known}")
    return GPUS[name]
