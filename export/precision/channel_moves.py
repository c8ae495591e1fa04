"""Where channels lie after an operator that moves numbers without mixing them.

A value's channels are an array of numbers, one a channel, with the value's rank: [1, 1, C] for x_BSC, [1, N, 1, D] for
x_BNSD. Axes of size 1 have no channels of their own (batch, sequence).
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

Channels = np.ndarray  # of whole numbers
Dims = Sequence[int | ir.SymbolicDim]

_IN_PLACE = frozenset({"Identity", "Relu", "LeakyRelu", "Neg", "Abs", "Dropout"})
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def moved(node: ir.Node, channels: Channels) -> tuple[Channels | None, ...]:
    """The channels of each output of a node whose first input has `channels`; None where they mix or are not followed."""
    value, results = node.inputs[0], node.outputs
    assert value is not None
    if node.op_type in _IN_PLACE:
        return (channels, *[None] * (len(results) - 1))
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", tuple(reversed(range(channels.ndim))))
        return (np.transpose(channels, order),)
    if node.op_type in _RESHAPES and value.shape is not None and results[0].shape is not None:
        return (reshaped(channels, value.shape.dims, results[0].shape.dims),)
    if node.op_type == "Split":
        return _parts(channels, node.attributes.get_int("axis", 0), results)
    return (None,) * len(results)


def reshaped(channels: Channels, before: Dims, after: Dims) -> Channels | None:
    """Channels of a value of sizes `before` read as `after`, None where a new axis holds more than channels.

    Axes are matched from the last one on: equal sizes, or groups of known sizes with equal products.
    """
    i, j = len(before), len(after)
    sizes: list[int] = []
    while any(size != 1 for size in channels.shape[:i]):
        if j == 0:
            return None
        group = _group(before[:i], after[:j])
        if group is None:
            return None
        block, old, new = channels.shape[group[0] : i], before[group[0] : i], after[group[1] : j]
        if all(size == 1 for size in block):
            sizes[:0] = [1] * len(new)
        elif block == tuple(old):
            sizes[:0] = [int(str(size)) for size in new]
        else:
            return None
        i, j = group
    return channels.reshape([1] * j + sizes)


def _group(before: Dims, after: Dims) -> tuple[int, int] | None:
    """Where the last axes begin that hold the same numbers on both sides; None where that is not known."""
    i, j = len(before) - 1, len(after) - 1
    old, new = before[i], after[j]
    if isinstance(old, ir.SymbolicDim) or isinstance(new, ir.SymbolicDim):
        names = [d.value if isinstance(d, ir.SymbolicDim) else None for d in (old, new)]
        return (i, j) if names[0] is not None and names[0] == names[1] else None
    while old != new:
        axis, dims = (i, before) if old < new else (j, after)
        size = dims[axis - 1] if axis else None
        if not isinstance(size, int):
            return None
        if dims is before:
            i, old = i - 1, old * size
        else:
            j, new = j - 1, new * size
    return i, j


def _parts(
    channels: Channels, axis: int, results: Sequence[ir.Value]
) -> tuple[Channels | None, ...]:
    """Those of each output of a Split."""
    if channels.shape[axis] == 1:
        return (channels,) * len(results)
    sizes = [None if v.shape is None else v.shape[axis] for v in results]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or sum(known) != channels.shape[axis]:
        return (None,) * len(results)
    return tuple(np.split(channels, np.cumsum(known)[:-1], axis))


def per_query_head(
    channels: Channels, query_heads: int, value_heads: int, axis: int
) -> Channels | None:
    """Channels of the values of an attention as its result has them: a kv head's serve each of its query heads.

    axis: the one that counts heads, whether apart (x_BNSD) or with their channels (x_BSC).
    """
    size = channels.shape[axis]
    if size == 1:
        return channels
    if not value_heads or query_heads % value_heads or size % value_heads:
        return None
    before, after = channels.shape[:axis], channels.shape[axis + 1 :]
    heads = channels.reshape(*before, value_heads, size // value_heads, *after)
    each = np.repeat(heads, query_heads // value_heads, axis)
    return each.reshape(*before, size // value_heads * query_heads, *after)
