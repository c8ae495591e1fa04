"""Round the numbers that arithmetic gave (fp32, fp64, integers) once to a declared element type.

    fp16, bf16, fp32  nearest, ties to even, overflow to infinity
    fp8 e4m3, e5m2    nearest, ties to even; beyond the largest: the largest, or NaN/infinity (saturate=False)
    fp8 e8m0          powers of two, rounded up, down or to the nearest
    fp4, fp6          nearest of the grid, ties to the even code, saturated
    integers          from floats: towards zero, saturated, NaN gives 0 (as CUDA converts); from integers: wrapped

Source: ONNX operators Cast and QuantizeLinear, and IEEE 754.
"""

import functools

import ml_dtypes
import numpy as np
import torch

from .type_names import DataType
from .values import NARROW_TYPES, TORCH_TYPES, Narrow

# Magnitude from which a number rounds to infinity (or NaN), the largest finite number, and the type's way to
# say "out of range".
_FP8 = {
    DataType.FLOAT8E4M3FN: (464.0, False, 448.0, float("nan")),  # a tie at 464 goes to the even 448
    DataType.FLOAT8E4M3FNUZ: (248.0, True, 240.0, float("nan")),
    DataType.FLOAT8E5M2: (61440.0, True, 57344.0, float("inf")),
    DataType.FLOAT8E5M2FNUZ: (61440.0, True, 57344.0, float("nan")),
}
LARGEST: dict[DataType, float] = {
    DataType.DOUBLE: 1.7976931348623157e308,
    DataType.FLOAT: 3.4028234663852886e38,
    DataType.FLOAT16: 65504.0,
    DataType.BFLOAT16: 3.3895313892515355e38,
    **{dtype: row[2] for dtype, row in _FP8.items()},
}
_BIT_WIDTHS = {DataType.INT2: 2, DataType.UINT2: 2, DataType.INT4: 4, DataType.UINT4: 4}
_GRIDS = {
    DataType.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    DataType.FLOAT6E2M3: ml_dtypes.float6_e2m3fn,
    DataType.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}


def round_to(
    wide: torch.Tensor, dtype: DataType, *, saturate: bool = True, mode: str = "up"
) -> torch.Tensor | Narrow:
    """Round `wide` (any shape) to `dtype`. saturate: for 8-bit floats; mode: for fp8 e8m0 only."""
    if dtype in NARROW_TYPES:
        return Narrow(_round_narrow(wide, dtype), dtype)
    target = TORCH_TYPES[dtype]
    if wide.dtype == target:
        return wide
    if target == torch.bool:
        return wide != 0
    if not target.is_floating_point or wide.is_complex():
        return integer_from_float(wide, target) if wide.is_floating_point() else wide.to(target)
    if dtype in _FP8:
        return _round_fp8(wide, dtype, saturate)
    if dtype == DataType.FLOAT8E8M0:
        return _round_e8m0(wide, saturate, mode)
    if target.itemsize < 4:
        return _float32_for_rounding(wide).to(target)
    return wide.to(target)


def integer_from_float(wide: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Truncate towards zero and saturate; NaN gives 0. ONNX leaves both undefined; CUDA's conversion does this."""
    number = wide.double().nan_to_num(nan=0.0).trunc()
    bounds = torch.iinfo(target)
    if bounds.max < 2**53:
        return number.clamp(bounds.min, bounds.max).to(torch.int64).to(target)
    top = 2.0**64 if target == torch.uint64 else 2.0**63  # bounds.max + 1, which fp64 can hold
    inside = number.clamp(bounds.min, np.nextafter(top, 0))
    high = inside >= 2.0**63  # only for uint64: torch converts its upper half as a negative int64
    whole = torch.where(high, inside - 2.0**64, inside).to(torch.int64)
    last = -1 if target == torch.uint64 else bounds.max
    return torch.where(number >= top, torch.full_like(whole, last), whole).view(target)


def _float32_for_rounding(wide: torch.Tensor) -> torch.Tensor:
    """fp32 numbers that round to a 16-bit (or narrower) type as the originals do.

    torch narrows fp64 through fp32, and rounding twice is not rounding once: round to odd first
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if wide.dtype == torch.float32:
        return wide
    exact = wide if wide.is_floating_point() else wide.double()
    if exact.dtype != torch.float64:
        return exact.float()
    near = exact.float()
    back = near.double()
    towards_zero = torch.where(
        back.abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near
    )
    odd = (towards_zero.view(torch.int32) | 1).view(torch.float32)
    keep = (back == exact) | near.isnan() | exact.isinf()
    return torch.where(keep, near, odd)


def _round_fp8(wide: torch.Tensor, dtype: DataType, saturate: bool) -> torch.Tensor:
    limit, inclusive, largest, beyond = _FP8[dtype]
    number = _float32_for_rounding(wide)
    rounded = number.clamp(-largest, largest).to(TORCH_TYPES[dtype])
    if saturate:
        return rounded
    outside = number.abs() >= limit if inclusive else number.abs() > limit
    if not bool(outside.any()):
        return rounded
    special = (torch.ones_like(number).copysign(number) * beyond).to(TORCH_TYPES[dtype])
    bits = torch.where(outside, special.view(torch.uint8), rounded.view(torch.uint8))
    return bits.view(TORCH_TYPES[dtype])


def _round_e8m0(wide: torch.Tensor, saturate: bool, mode: str) -> torch.Tensor:
    """2 ** (code - 127), code 255 for NaN (OCP Microscaling Formats 1.0); the sign is dropped."""
    number = wide.double().abs()
    mantissa, exponent = torch.frexp(number)  # mantissa in 0.5 .. 1
    code = exponent.to(torch.int64) - 1 + 127
    if mode == "up":
        code = code + (mantissa > 0.5)
    elif mode == "nearest":
        code = code + (mantissa >= 0.75)
    code = torch.where(number == 0, -1, torch.where(number.isinf(), 255, code))
    if saturate:
        code = code.clamp(0, 254)
    else:
        code = torch.where((code < 0) | (code > 254), 255, code)
    code = torch.where(number.isnan(), 255, code)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _round_narrow(wide: torch.Tensor, dtype: DataType) -> torch.Tensor:
    holder = NARROW_TYPES[dtype]
    if dtype in _GRIDS:
        return _round_to_grid(wide.double(), dtype).to(holder)
    bits = _BIT_WIDTHS[dtype]
    low = -(2 ** (bits - 1)) if holder.is_signed else 0
    if wide.is_floating_point():
        number = torch.nan_to_num(wide.double(), nan=0.0).trunc()
        return number.clamp(low, low + 2**bits - 1).to(holder)
    wrapped: torch.Tensor = (wide.to(torch.int64) - low) % 2**bits + low
    return wrapped.to(holder)


def _round_to_grid(number: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Nearest representable magnitude; a tie goes to the even code, since codes count magnitudes upwards."""
    grid = _magnitudes(dtype)
    size = number.abs().nan_to_num(nan=float(grid[-1])).clamp(max=float(grid[-1]))
    above = torch.searchsorted(grid, size.contiguous()).clamp(min=1)
    low, high = grid[above - 1], grid[above]
    middle = (low + high) / 2
    take_high = (size > middle) | ((size == middle) & (above % 2 == 0))
    return torch.where(take_high, high, low).copysign(number)


@functools.cache
def _magnitudes(dtype: DataType) -> torch.Tensor:
    half = 2 ** (dtype.bitwidth - 1)
    codes = np.arange(half, dtype=np.uint8).view(_GRIDS[dtype])
    return torch.from_numpy(codes.astype(np.float64))
