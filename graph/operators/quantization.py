"""QuantizeLinear and its kin: per tensor, per axis and per block; FP8 saturates, integers too.

q = saturate(round(x / scale) + zero_point)          y = (q - zero_point) * scale
"""

import torch

from ..type_names import DataType
from ..values import NARROW_TYPES, TORCH_TYPES, Narrow, arithmetic
from .registry import Call, Tensor, math, raw

_RANGES = {
    DataType.INT2: (-2, 1),
    DataType.INT4: (-8, 7),
    DataType.UINT2: (0, 3),
    DataType.UINT4: (0, 15),
}


def _range(dtype: DataType) -> tuple[int, int] | None:
    """Lowest and highest number of an integer type; None for a float type."""
    if dtype in _RANGES:
        return _RANGES[dtype]
    if dtype in NARROW_TYPES or TORCH_TYPES[dtype].is_floating_point:
        return None
    info = torch.iinfo(TORCH_TYPES[dtype])
    return info.min, info.max


def _along(parameter: Tensor, x: Tensor, call: Call) -> Tensor:
    """A scale or zero point shaped to broadcast over x: per tensor, per axis, or repeated over blocks."""
    if parameter.numel() == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = call.get_int("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    block = call.get_int("block_size", 0)
    if parameter.ndim == x.ndim and block:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    if parameter.ndim != 1:
        return parameter
    if x.ndim <= axis or parameter.numel() != x.shape[axis]:
        raise ValueError(f"{parameter.numel()} scales along axis {axis} of {list(x.shape)}")
    return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


@raw("QuantizeLinear")
def quantize_linear(
    call: Call, x: Tensor, scale: Tensor, zero_point: Tensor | Narrow | None = None
) -> Tensor:
    """The division happens in the scale's type (or `precision`), never in less than fp32."""
    dtype = _quantized_type(call)
    ratio = arithmetic(x) / _along(arithmetic(scale), x, call)
    if not call.exact:
        ratio = ratio.float() if ratio.dtype != torch.float64 or not _wants_double(call) else ratio
    bounds = _range(dtype)
    if bounds is None:
        return ratio  # rounded to the grid, and saturated, where every result is rounded
    whole = torch.round(ratio).double()
    if zero_point is not None:
        whole = whole + _along(arithmetic(zero_point), x, call)
    return whole.nan_to_num(nan=0.0).clamp(*bounds)


def _quantized_type(call: Call) -> DataType:
    if number := call.get_int("output_dtype", 0):
        return DataType(number)
    return (call.dtypes[2] if len(call.dtypes) > 2 else None) or DataType.UINT8


def _wants_double(call: Call) -> bool:
    return DataType.DOUBLE in (call.dtypes[1], call.get_int("precision", 0))


@math("DequantizeLinear")
def dequantize_linear(
    call: Call, x: Tensor, scale: Tensor, zero_point: Tensor | None = None
) -> Tensor:
    """Rounded to the output type once, after the product."""
    number = x.to(torch.promote_types(scale.dtype, torch.float32))
    if zero_point is not None:
        number = number - _along(zero_point, x, call)
    return number * _along(scale, x, call)


@math("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 over the tensor's own range, zero included."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, torch.ones((), dtype=scale.dtype), scale)
    zero = torch.round((0 - low) / safe).clamp(0, 255)
    return (torch.round(x / safe) + zero).clamp(0, 255), scale, zero


@math("QLinearMatMul")
def qlinear_matmul(
    call: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """Integer products in int32, one rescaling, rounded to nearest even and saturated."""
    product = torch.matmul(_centred(a, a_zero, -1), _centred(b, b_zero, 0))
    ratio = _rows(a_scale) * b_scale.double() / _rows(y_scale)
    bounds = _range(call.dtypes[7] or DataType.UINT8)
    assert bounds is not None
    whole = torch.round(product.double() * ratio) + _rows(y_zero)
    return whole.clamp(*bounds)


def _rows(parameter: Tensor) -> Tensor:
    """One number per row of the left factor, as a column."""
    wide = parameter.double()
    return wide.unsqueeze(-1) if wide.ndim == 1 and wide.numel() > 1 else wide


def _centred(x: Tensor, zero: Tensor, axis: int) -> Tensor:
    wide = zero.to(torch.int32)
    if wide.ndim == 1 and wide.numel() > 1 and axis == -1:
        wide = wide.unsqueeze(-1)
    return x.to(torch.int32) - wide
