"""How kernels are launched: one frozen tuning per kernel family and architecture, with its reason.

tuning + sizes of the call -> Launch: constants of the kernel, rows per program, programs per row, warps

Bytes in flight = bandwidth * latency, with data-sheet bandwidths and half a microsecond assumed. That is
arithmetic, not a measurement: benchmarks/kernels.py measures, and what it shows belongs here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import UsageError

ARCHITECTURES = (80, 89, 90, 100, 120)  # compute capability * 10
FP8_ARCHITECTURES = (89, 90, 100, 120)  # E4M3 conversions exist from 8.9 on
WARP = 32

Family = Literal["norm", "glu", "heads"]
Constants = Mapping[str, int | float | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Launch geometry of one family on one architecture.

    per_thread: elements one thread holds (16 of two bytes are two 128-bit loads, and one 128-bit store of FP8);
    resident: longest row, in elements of two bytes, that a program keeps in registers (norm), columns per program
    (glu), or elements of a tile of heads (heads);
    least: a program takes several short rows until it has this many elements; warps: at most.
    """

    per_thread: int
    resident: int
    least: int
    warps: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch: grid = ceil(rows / per_program) * columns programs of warps * 32 threads."""

    constants: Constants
    per_program: int = 1
    columns: int = 1
    warps: int = 4

    def grid(self, rows: int) -> int:
        """Programs for this many rows; one idle program where there is none, since an empty grid is illegal."""
        return max(-(-rows // self.per_program) * self.columns, 1)


def _streaming(family: Family, reason: str) -> Tuning:
    """Threads of two 128-bit loads per tensor; a row stays in registers while 512 threads can hold it."""
    match family:
        case "norm":
            return Tuning(per_thread=16, resident=16384, least=1024, warps=16, reason=reason)
        case "glu":
            return Tuning(per_thread=16, resident=2048, least=2048, warps=4, reason=reason)
        case "heads":
            return Tuning(per_thread=16, resident=1024, least=1024, warps=16, reason=reason)


def _sm80(family: Family) -> Tuning:
    return _streaming(
        family,
        "2 TB/s over 108 SMs: 9 KB in flight per SM; a block of 512 threads asks for 16 KB at once",
    )


def _sm89(family: Family) -> Tuning:
    return _streaming(family, "1 TB/s over 142 SMs: 4 KB in flight per SM are less than on sm_80")


def _sm90(family: Family) -> Tuning:
    return _streaming(
        family,
        "4.8 TB/s over 132 SMs: 18 KB in flight per SM; two blocks of 512 threads ask for 32 KB",
    )


def _sm100(family: Family) -> Tuning:
    return _streaming(
        family,
        "8 TB/s over 148 SMs: 27 KB in flight per SM; two blocks of 512 threads ask for 32 KB",
    )


def _sm120(family: Family) -> Tuning:
    return _streaming(family, "1.8 TB/s over 188 SMs: 5 KB in flight per SM, as on sm_89")


_FACTORIES = {80: _sm80, 89: _sm89, 90: _sm90, 100: _sm100, 120: _sm120}
assert tuple(_FACTORIES) == ARCHITECTURES


def tuning(family: Family, arch: int) -> Tuning:
    """The tuning of a family for compute capability arch / 10; the next lower one where we have none."""
    known = [a for a in ARCHITECTURES if a <= arch]
    if not known:
        raise UsageError(
            f"kernels for sm_{arch}",
            found="older than any we build for",
            fix=f"Known: {', '.join(f'sm_{a}' for a in ARCHITECTURES)}",
        )
    return _FACTORIES[known[-1]](family)


def _power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _warps(elements: int, tuning: Tuning) -> int:
    return min(max(elements // (tuning.per_thread * WARP), 1), tuning.warps)


def launch_norm(sizes: Mapping[str, Any], tuning: Tuning) -> Launch:
    """Whole rows per program; several when they are short, in blocks when they are very long."""
    row = int(sizes["N"])
    resident = (
        tuning.resident * 2 // max(int(sizes["itemsize"]), 2)
    )  # float32 needs twice the registers
    block = _power(row) if row <= resident else min(resident, 8192)
    rows = max(tuning.least // block, 1)
    warps = _warps(block * rows, tuning)
    early = block * rows <= tuning.per_thread * WARP * warps
    constants = {"N": row, "BLOCK": block, "ROWS": rows, "EARLY": early}
    return Launch(constants=constants, per_program=rows, warps=warps)


def launch_glu(sizes: Mapping[str, Any], tuning: Tuning) -> Launch:
    """A tile of one long row or of several short ones."""
    row = int(sizes["N"])
    block = min(_power(row), tuning.resident)
    rows = max(tuning.least // block, 1)
    constants = {"N": row, "BLOCK": block, "ROWS": rows}
    warps = _warps(block * rows, tuning)
    return Launch(constants=constants, per_program=rows, columns=-(-row // block), warps=warps)


def launch_heads(sizes: Mapping[str, Any], tuning: Tuning) -> Launch:
    """One program per token, which takes its heads in tiles of about `resident` elements."""
    size = int(sizes["D"])
    half = _power(size // 2)
    heads = _power(max(int(sizes["q_num_heads"]), int(sizes["kv_num_heads"])))
    tile = max(min(heads, tuning.resident // (2 * half)), 1)
    constants = {"D": size, "HALF": half, "TILE": tile}
    return Launch(constants=constants, warps=_warps(2 * half * tile, tuning))
