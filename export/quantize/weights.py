"""Scales and codes of one weight: per output channel, or per block of input channels.

scale of a channel: of the 8 in an octave around amax / largest, the one with the least weighted squared error; where a
number lies in its octave is what a floating-point grid cares about, and a little clipping may pay.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch

from ...core.errors import ArtefactError, UsageError
from ..calibration.observers import Grid
from ..linears.find import Linear
from .grids import E2M1, E4M3, INT4, INT8, ONNX_TYPES

STEPS = 8  # scales tried per octave
CLIPPED = 2  # how many of them lie below amax's
ROWS = 128  # input channels that the search looks at


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored. block: codes along the input axis that share a scale, 0 for one scale per channel.

    two_level: block scales are FP8 themselves, times one number for the whole weight.
    """

    grid: Grid
    block: int = 0
    two_level: bool = False


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "fp8": WeightFormat(E4M3),
    "fp8-weights": WeightFormat(E4M3),
    "int8-weights": WeightFormat(INT8),
    "int4-weights": WeightFormat(INT4, block=64),
    "nvfp4": WeightFormat(E2M1, block=16, two_level=True),
}


def read_weight(linear: Linear) -> torch.Tensor:
    """The weight as fp32 [in, out]; ArtefactError where it is not finite."""
    tensor = linear.weight.const_value
    assert tensor is not None
    array = torch.from_numpy(tensor.numpy().astype(np.float32))
    if not bool(array.isfinite().all()):
        raise ArtefactError(
            f"weight {linear.weight.name!r}",
            found="it holds NaN or infinity",
            fix="Export it again",
        )
    return (array.T if linear.transposed else array).contiguous()


def misfit(linear: Linear, form: WeightFormat) -> str:
    """Why the weight cannot take the format, empty when it can."""
    if form.block and linear.size_in % form.block:
        return f"its {linear.size_in} input channels are no whole number of blocks of {form.block}"
    return ""


def weight_scales(
    weight: torch.Tensor, form: WeightFormat, importance: torch.Tensor | None, dtype: ir.DataType
) -> torch.Tensor:
    """Scales [out], or [in / block, out], for `weight` [in, out]; importance: of each input channel.

    A channel of zeros gets the scale 1: its codes are zero, and so is its product.
    """
    rows = weight
    if form.block:
        blocks = weight.reshape(-1, form.block, weight.shape[1])
        return _block_scales(blocks, form, dtype)
    amax = rows.abs().amax(0)
    top = torch.where(amax > 0, amax, form.grid.largest) / form.grid.largest
    stride = -(-rows.shape[0] // ROWS)
    part = rows[::stride]
    weigh = None if importance is None else importance[::stride, None]
    best, least = representable(top, dtype), torch.full_like(top, math.inf)
    floating = form.grid is E4M3
    steps = range(-CLIPPED, STEPS - CLIPPED) if floating else range(-STEPS, 1)
    for step in steps:
        scale = representable(top * 2.0 ** (step / STEPS), dtype)
        error = (part - form.grid.round(part / scale) * scale).square_()
        total = (error if weigh is None else error.mul_(weigh)).sum(0)
        better = total < least
        best, least = torch.where(better, scale, best), torch.where(better, total, least)
    return best


def _block_scales(blocks: torch.Tensor, form: WeightFormat, dtype: ir.DataType) -> torch.Tensor:
    """Scales [blocks, out] of `blocks` [blocks, block, out]."""
    amax = blocks.abs().amax(1)
    top = torch.where(amax > 0, amax, form.grid.largest) / form.grid.largest
    if form.two_level:
        whole = global_scale(top, dtype)
        return representable(scale_codes(top, whole, dtype) * whole, dtype)
    return representable(top, dtype)


def global_scale(scales: torch.Tensor, dtype: ir.DataType) -> torch.Tensor:
    """The power of two by which block scales are divided so that they fit E4M3; products with it are exact."""
    return representable(torch.exp2(torch.log2(scales.amax() / 448.0).ceil()), dtype)


def scale_codes(scales: torch.Tensor, whole: torch.Tensor, dtype: ir.DataType) -> torch.Tensor:
    """Block scales as numbers of E4M3, none so small that it or its product with `whole` would be zero."""
    least = float(np.array(1).astype(np.uint16).view(dtype.numpy())) if dtype.itemsize == 2 else 0.0
    return E4M3.round((scales / whole).clamp(min=max(2.0**-9, least)))


def representable(scale: torch.Tensor, dtype: ir.DataType) -> torch.Tensor:
    """The nearest scales that the type of the graph's scales holds exactly, as fp32.

    Raises UsageError where one would be zero or infinite: then the weights do not suit the type.
    """
    numpy_type = dtype.numpy()
    if dtype == ir.DataType.FLOAT:
        rounded = scale.float()
    else:
        rounded = torch.from_numpy(scale.numpy().astype(numpy_type).astype(np.float32))
    if not bool((rounded.isfinite() & (rounded > 0)).all()):
        raise UsageError(
            f"a scale in {dtype.name.lower()}",
            found=f"{float(scale.min())} to {float(scale.max())} does not fit the type",
            fix="Scale the weights, or leave the linear high with keep",
        )
    return rounded


def nearest(weight: torch.Tensor, scales: torch.Tensor, form: WeightFormat) -> torch.Tensor:
    """Codes as fp32 [in, out], each the nearest of the grid."""
    return form.grid.round(weight / expanded(scales, form))


def expanded(scales: torch.Tensor, form: WeightFormat) -> torch.Tensor:
    """Scales that broadcast over [in, out]."""
    return scales.repeat_interleave(form.block, 0) if form.block else scales


def codes_tensor(
    codes: torch.Tensor, form: WeightFormat, transposed: bool, name: str
) -> ir.TensorProtocol:
    """Codes fp32 [in, out] as the file stores them."""
    stored = (codes.T if transposed else codes).contiguous()
    dtype = ONNX_TYPES[form.grid.name]
    if form.grid is E4M3:
        bits = stored.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return ir.tensor(bits.view(ml_dtypes.float8_e4m3fn), dtype=dtype, name=name)
    return ir.tensor(stored.numpy().astype(dtype.numpy()), dtype=dtype, name=name)
