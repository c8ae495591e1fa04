"""DeformConv (ONNX opset 19): a 2-D convolution whose cells are read at places moved by an input."""

import torch

from ..values import split_axis
from .registry import Call, Tensor, math


@math("DeformConv")
def deform_conv(
    call: Call,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """x [N, C, H, W]; weight [M, C / group, kh, kw]; offset [N, groups * cells * 2, oh, ow]; mask half of that."""
    if weight.ndim != 4:
        raise ValueError(f"only 2-D convolutions, not a weight of rank {weight.ndim}")
    kernel = tuple(weight.shape[2:])
    cells, groups = kernel[0] * kernel[1], call.get_int("offset_group", 1)
    out = tuple(offset.shape[2:])
    moved = offset.reshape(x.shape[0], groups, cells, 2, *out)
    sampled = _sample(split_axis(x, 1, (groups, -1)), _places(call, kernel, out) + moved)
    if mask is not None:
        sampled = sampled * mask.reshape(x.shape[0], groups, 1, cells, *out)
    columns = sampled.flatten(1, 2)  # [N, C, cells, oh, ow]
    parts = call.get_int("group", 1)
    grouped = (
        split_axis(columns, 1, (parts, -1)).flatten(2, 3).flatten(3)
    )  # [N, parts, C/parts*cells, oh*ow]
    filters = split_axis(weight, 0, (parts, -1)).flatten(2)  # [parts, M/parts, C/parts*cells]
    y = split_axis((filters @ grouped).flatten(1, 2), 2, out)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _places(call: Call, kernel: tuple[int, ...], out: tuple[int, ...]) -> Tensor:
    """Where an ordinary convolution reads: [cells, 2, oh, ow]."""
    strides, dilations = call.get_ints("strides") or [1, 1], call.get_ints("dilations") or [1, 1]
    pads = call.get_ints("pads") or [0, 0, 0, 0]
    rows, columns = (
        (torch.arange(k) * d - p).reshape(-1, 1) + torch.arange(n) * s
        for k, d, p, n, s in zip(kernel, dilations, pads, out, strides, strict=False)
    )
    y = rows[:, None, :, None].expand(*kernel, *out)
    x = columns[None, :, None, :].expand(*kernel, *out)
    return torch.stack([y, x], 2).flatten(0, 1)


def _sample(x: Tensor, places: Tensor) -> Tensor:
    """x [N, G, C, H, W] bilinearly at places [N, G, cells, 2, oh, ow], zero outside: [N, G, C, cells, oh, ow]."""
    height, width = x.shape[-2:]
    y, z = places[:, :, :, 0], places[:, :, :, 1]
    low_y, low_z = y.floor(), z.floor()
    flat = x.flatten(3)
    result = torch.zeros((), dtype=x.dtype)
    for step_y in (0, 1):
        for step_z in (0, 1):
            at_y, at_z = low_y + step_y, low_z + step_z
            share = (1 - (y - at_y).abs()) * (1 - (z - at_z).abs())
            inside = (at_y >= 0) & (at_y < height) & (at_z >= 0) & (at_z < width)
            place = at_y.clamp(0, height - 1).long() * width + at_z.clamp(0, width - 1).long()
            index = place.flatten(2).unsqueeze(2).expand(*flat.shape[:3], -1)
            value = split_axis(flat.gather(3, index), 3, tuple(place.shape[2:]))
            result = result + value * torch.where(inside, share, 0.0).unsqueeze(2)
    return result
