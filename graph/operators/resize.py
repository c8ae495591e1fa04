"""Resize (and Upsample): every axis is a small linear map, out = weights[out, in] @ in, built in fp64.

Source: ONNX operator Resize, opset 10 to 19.
"""

import math as number
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..values import integers, positive_axes
from .registry import Call, Tensor, math


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized. crop: start and end of the region in 0..1 (tf_crop_and_resize)."""

    axis: int
    length: int
    out: int
    scale: float
    crop: tuple[float, float]


@math("Resize", "Upsample")
def resize(
    call: Call,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """By scales or to sizes, nearest, linear or cubic."""
    if call.op_type == "Upsample" or call.version < 11:
        given = (
            roi if roi is not None else torch.tensor(list(call.attributes["scales"].as_floats()))
        )
        roi, scales = None, given
    for axis in _axes(call, x, roi, scales, sizes):
        x = _resized(call, x, axis)
    return x


def _axes(
    call: Call, x: Tensor, roi: Tensor | None, scales: Tensor | None, sizes: Tensor | None
) -> list[_Axis]:
    chosen = positive_axes(call.get_ints("axes") or list(range(x.ndim)), x.ndim)
    lengths = [x.shape[axis] for axis in chosen]
    if sizes is not None and sizes.numel():
        outs = integers(sizes)
        factors = [out / n for out, n in zip(outs, lengths, strict=True)]
        policy = call.get_str("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            outs = [number.floor(factor * n + 0.5) for n in lengths]
    elif scales is not None:
        factors = [float(s) for s in scales]
        outs = [number.floor(n * f) for n, f in zip(lengths, factors, strict=True)]
    else:
        raise ValueError("neither scales nor sizes")
    half = len(chosen)
    region = (
        [0.0] * half + [1.0] * half if roi is None or not roi.numel() else [float(r) for r in roi]
    )
    whole = [
        _Axis(axis, n, out, f, (region[i], region[i + half]))
        for i, (axis, n, out, f) in enumerate(zip(chosen, lengths, outs, factors, strict=True))
    ]
    return [a for a in whole if a.out != a.length or a.scale != 1 or a.crop != (0.0, 1.0)]


def _positions(call: Call, axis: _Axis) -> Tensor:
    """Where each output element lies on the input axis."""
    out = torch.arange(axis.out, dtype=torch.float64)
    old = call.op_type == "Upsample" or call.version < 11
    mode = call.get_str("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    if mode == "asymmetric":
        return out / axis.scale
    if mode == "align_corners":
        return out * (axis.length - 1) / (axis.out - 1) if axis.out > 1 else out * 0
    if mode == "tf_crop_and_resize":
        start, end = axis.crop
        if axis.out == 1:
            return 0.5 * (start + end) * (axis.length - 1) + out
        return start * (axis.length - 1) + out * (end - start) * (axis.length - 1) / (axis.out - 1)
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return out * 0
    if mode == "tf_half_pixel_for_nn":
        return (out + 0.5) / axis.scale
    shift = 0.0
    if mode == "half_pixel_symmetric":
        shift = axis.length / 2 * (1 - axis.out / (axis.scale * axis.length))
    return shift + (out + 0.5) / axis.scale - 0.5


def _resized(call: Call, x: Tensor, axis: _Axis) -> Tensor:
    positions = _positions(call, axis)
    mode = call.get_str("mode", "nearest")
    if mode == "nearest":
        result = x.index_select(axis.axis, _nearest(call, positions, axis.length))
    else:
        weights = _weights(call, mode, positions, axis).to(x.dtype)
        result = (x.movedim(axis.axis, -1) @ weights.mT).movedim(-1, axis.axis)
    if call.get_str("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return result
    outside = (positions < 0) | (positions > axis.length - 1)
    shape = [-1 if i == axis.axis else 1 for i in range(x.ndim)]
    return torch.where(
        outside.reshape(shape),
        torch.tensor(call.get_float("extrapolation_value", 0.0)).to(x.dtype),
        result,
    )


def _nearest(call: Call, positions: Tensor, length: int) -> Tensor:
    old = call.op_type == "Upsample" or call.version < 11
    mode = call.get_str("nearest_mode", "floor" if old else "round_prefer_floor")
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round_prefer_floor": lambda p: torch.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: torch.floor(p + 0.5),
    }
    return functions[mode](positions).to(torch.int64).clamp(0, length - 1)


def _weights(call: Call, mode: str, positions: Tensor, axis: _Axis) -> Tensor:
    """The map of one axis as a matrix [out, in]."""
    stretch = min(axis.scale, 1.0) if call.get_int("antialias", 0) else 1.0
    a = call.get_float("cubic_coeff_a", -0.75)
    reach = (1 if mode == "linear" else 2) / stretch
    first = torch.floor(positions).to(torch.int64)
    if stretch < 1:
        taps = torch.arange(-number.ceil(reach) - 1, number.ceil(reach) + 2)
    else:
        taps = torch.arange(0, 2) if mode == "linear" else torch.arange(-1, 3)
    where = first.unsqueeze(1) + taps  # [out, taps]
    distance = (where - positions.unsqueeze(1)).abs() * stretch
    amounts = (1 - distance).clamp(min=0) if mode == "linear" else _cubic(distance, a)
    outside = (where < 0) | (where >= axis.length)
    if call.get_int("exclude_outside", 0):
        amounts = torch.where(outside, 0.0, amounts)
    if call.get_int("exclude_outside", 0) or stretch < 1:
        amounts = amounts / amounts.sum(1, keepdim=True)
    matrix = torch.zeros(axis.out, axis.length, dtype=torch.float64)
    return matrix.scatter_add(1, where.clamp(0, axis.length - 1), amounts)


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Keys' cubic convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))
