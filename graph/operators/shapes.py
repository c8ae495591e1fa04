"""Operators that read or change a tensor's shape and leave its elements alone."""

import math as number
from collections.abc import Sequence

import numpy as np
import torch

from ..values import Value, integers, positive_axes
from .registry import Call, Tensor, move, raw


@raw("Identity")
def identity(call: Call, x: Value) -> Value:
    """The value itself."""
    return x


@move("Shape")
def shape(call: Call, x: Tensor) -> Tensor:
    """The sizes from axis `start` to before `end` (opset 15), as int64[axes]."""
    rank = x.ndim
    start, end = (
        min(max(axis + rank if axis < 0 else axis, 0), rank)
        for axis in (call.get_int("start", 0), call.get_int("end", rank))
    )
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


@move("Size")
def size(call: Call, x: Tensor) -> Tensor:
    """The number of elements."""
    return torch.tensor(x.numel(), dtype=torch.int64)


@move("Reshape")
def reshape(call: Call, x: Tensor, sizes: Tensor | None = None) -> Tensor:
    """0 keeps the input's size (unless allowzero), -1 takes what is left."""
    wanted = integers(sizes) if sizes is not None else call.get_ints("shape") or []
    if not call.get_int("allowzero", 0):
        wanted = [x.shape[axis] if n == 0 else n for axis, n in enumerate(wanted)]
    if -1 in wanted and x.numel() == 0:
        rest = number.prod(n for n in wanted if n != -1)
        wanted = [0 if n == -1 and rest else n for n in wanted]
    return x.reshape(wanted)


@move("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    """A matrix: the axes before `axis`, and the rest."""
    axis = call.get_int("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(number.prod(x.shape[:axis]), number.prod(x.shape[axis:]))


@move("Squeeze")
def squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Without axes, every axis of size 1 goes; an axis of another size is an error."""
    chosen = _axes(call, axes)
    if chosen is None:
        return x.squeeze()
    chosen = positive_axes(chosen, x.ndim)
    if wrong := [axis for axis in chosen if x.shape[axis] != 1]:
        raise ValueError(f"axis {wrong[0]} has size {x.shape[wrong[0]]}, not 1")
    return x.reshape([n for axis, n in enumerate(x.shape) if axis not in chosen])


@move("Unsqueeze")
def unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Axes count in the result."""
    chosen = _axes(call, axes) or []
    for axis in sorted(positive_axes(chosen, x.ndim + len(chosen))):
        x = x.unsqueeze(axis)
    return x


@move("Transpose")
def transpose(call: Call, x: Tensor) -> Tensor:
    """The axes in another order, reversed by default."""
    order = call.get_ints("perm")
    return x.permute(order if order is not None else list(reversed(range(x.ndim))))


@move("Expand")
def expand(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    """Broadcast in both directions: a size of 1 in `sizes` keeps the input's."""
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(integers(sizes))))


@move("Tile")
def tile(call: Call, x: Tensor, repeats: Tensor, axis: Tensor | None = None) -> Tensor:
    """Repeated along each axis."""
    if call.version < 6 and axis is not None:
        counts = [1] * x.ndim
        counts[integers(axis)[0]] = integers(repeats)[0]
        return x.repeat(counts)
    return x.repeat(integers(repeats))


@move("Concat")
def concat(call: Call, *inputs: Tensor) -> Tensor:
    """Joined along one axis."""
    axis = call.get_int("axis", 1)
    return torch.cat(inputs, dim=axis)


@move("Split")
def split(call: Call, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Equal parts (the last may be smaller, opset 18) unless sizes are given."""
    axis = call.get_int("axis", 0)
    given = integers(sizes) if sizes is not None else call.get_ints("split")
    if given is None:
        parts = call.get_int("num_outputs", len(call.wanted))
        step = -(-x.shape[axis] // parts)
        given = [max(0, min(step, x.shape[axis] - i * step)) for i in range(parts)]
    return x.split_with_sizes(given, axis)


@move("Slice")
def slice_(
    call: Call,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """numpy's x[start:end:step] on the named axes; attributes before opset 10."""
    first = call.get_ints("starts") or [] if starts is None else integers(starts)
    last = call.get_ints("ends") or [] if ends is None else integers(ends)
    chosen = _axes(call, axes)
    chosen = list(range(len(first))) if chosen is None else positive_axes(chosen, x.ndim)
    strides = [1] * len(first) if steps is None else integers(steps)
    for start, end, axis, step in zip(first, last, chosen, strides, strict=True):
        x = _sliced(x, axis, slice(start, end, step))
    return x


def _sliced(x: Tensor, axis: int, part: slice) -> Tensor:
    length = x.shape[axis]
    if part.step > 0:
        start, end, step = part.indices(length)
        return x[(slice(None),) * axis + (slice(start, max(start, end), step),)]
    start, end, step = part.indices(length)
    return x.index_select(axis, torch.arange(start, end, step) if start > end else torch.arange(0))


def _axes(call: Call, axes: Tensor | None) -> list[int] | None:
    """Axes are an attribute before opset 13 (Slice: 10) and an input since."""
    return integers(axes) if axes is not None else call.get_ints("axes")


@move("Pad")
def pad(
    call: Call,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    """pads: all begins, then all ends; a negative pad cuts. Modes: constant, reflect, edge, wrap."""
    amounts = call.get_ints("pads") or call.get_ints("paddings") or []  # before opset 11
    amounts = amounts if pads is None else integers(pads)
    chosen = range(x.ndim) if axes is None else positive_axes(integers(axes), x.ndim)
    half = len(amounts) // 2
    mode = call.get_str("mode", "constant")
    for axis, before, after in zip(chosen, amounts[:half], amounts[half:], strict=True):
        if mode == "constant":
            x = _pad_constant(call, x, axis, (before, after), value)
        else:
            x = x.index_select(axis, _source_positions(x.shape[axis], before, after, mode))
    return x


def _pad_constant(
    call: Call, x: Tensor, axis: int, amounts: Sequence[int], value: Tensor | None
) -> Tensor:
    before, after = amounts
    length = x.shape[axis]
    x = x.narrow(axis, max(-before, 0), length - max(-before, 0) - max(-after, 0))
    fill = value if value is not None else torch.tensor(call.get_float("value", 0.0)).to(x.dtype)

    def edge(count: int) -> Tensor:
        return fill.reshape(()).expand([*x.shape[:axis], max(count, 0), *x.shape[axis + 1 :]])

    return torch.cat([edge(before), x, edge(after)], dim=axis)


def _source_positions(length: int, before: int, after: int, mode: str) -> Tensor:
    positions = torch.arange(-before, length + after)
    if mode == "edge":
        return positions.clamp(0, length - 1)
    if mode == "wrap":
        return positions % length
    period = max(2 * length - 2, 1)
    return (length - 1 - (positions % period - (length - 1)).abs()) if length > 1 else positions * 0


@move("Trilu")
def trilu(call: Call, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """The upper or lower triangle, zeros elsewhere."""
    k = 0 if diagonal is None else integers(diagonal)[0]
    return x.triu(k) if call.get_int("upper", 1) else x.tril(k)


@move("DepthToSpace")
def depth_to_space(call: Call, x_NCHW: Tensor) -> Tensor:
    """Blocks of channels become blocks of pixels."""
    n, c, h, w = x_NCHW.shape
    b = call.get_int("blocksize", 1)
    if call.get_str("mode", "DCR") == "DCR":
        blocks = x_NCHW.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x_NCHW.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // b**2, h * b, w * b)


@move("SpaceToDepth")
def space_to_depth(call: Call, x_NCHW: Tensor) -> Tensor:
    """Blocks of pixels become blocks of channels."""
    n, c, h, w = x_NCHW.shape
    b = call.get_int("blocksize", 1)
    if call.get_str("mode", "DCR") == "CRD":
        blocks = x_NCHW.reshape(n, c, h // b, b, w // b, b).permute(0, 1, 3, 5, 2, 4)
    else:
        blocks = x_NCHW.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b**2, h // b, w // b)


@move("CenterCropPad")
def center_crop_pad(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    """Cut or zero-padded around the middle to the asked sizes."""
    axes = call.get_ints("axes")
    chosen = range(x.ndim) if axes is None else positive_axes(axes, x.ndim)
    for axis, wanted in zip(chosen, integers(sizes), strict=True):
        extra = wanted - x.shape[axis]
        before = extra // 2 if extra > 0 else -((-extra) // 2)
        x = _pad_constant(call, x, axis, (before, extra - before), None)
    return x


@move("ReverseSequence")
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """Turn the first lengths[b] steps of each batch entry around."""
    time, batch = call.get_int("time_axis", 0), call.get_int("batch_axis", 1)
    steps = torch.arange(x.shape[time]).reshape(1, -1)
    ends = lengths.reshape(-1, 1)
    source = torch.where(steps < ends, ends - 1 - steps, steps)  # [batch, time]
    moved = x.movedim((batch, time), (0, 1))
    taken = moved[torch.arange(moved.shape[0]).reshape(-1, 1), source]
    return taken.movedim((0, 1), (batch, time))
