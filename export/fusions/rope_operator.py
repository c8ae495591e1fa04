"""RotaryEmbedding (opset 23) for a proven rotation: half-width caches with the batch of x, any layout of x.

x [B, H, S, D]            as it is
x [B, S, H, D]            as [B, S, H * D] with num_heads
x [B, S, D]               with num_heads 1
cos, sin                  [B, S, width / 2], cut from the full-width tables and spread over the batch once
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import onnx_ir as ir

from ..algebra.coefficients import Coefficient
from ..algebra.facts import Facts
from ..algebra.symbols import Dim, Dims
from .match import Standard, Tape

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Rotation:
    """A proven rotation of `x`: its layout, and one coefficient per pair."""

    x: ir.Value
    root: ir.Value
    width: int  # lanes that are turned; the rest pass
    interleaved: bool
    cosines: tuple[Coefficient, ...]
    sines: tuple[Coefficient, ...]
    backwards: bool  # turned by the negative angle
    order: tuple[int, ...] | None = (
        None  # lanes of x in the order in which they are turned, None as they are
    )


def standard_rope(facts: Facts, found: Rotation) -> Standard | None:
    """The standard operator, None where x, the tables or the types have no such form."""
    dims = facts.dims(found.x)
    if dims is not None and found.order is not None:
        dims = (*dims[:-1], len(found.order))
    cosine, sine = _cut(found.cosines), _cut(found.sines)
    if dims is None or cosine is None or sine is None or len(dims) not in (3, 4):
        return None
    dtype = facts.dtype(cosine.table)
    if dtype not in TYPES or facts.dtype(sine.table) != dtype or facts.dims(found.root) != dims:
        return None
    axis = _sequence_axis(dims, [cosine.dims(facts), sine.dims(facts)])
    if axis is None or not isinstance(dims[-1], int):
        return None
    heads = 1 if len(dims) == 3 else dims[1] if axis == 2 else dims[2]
    if (axis != 2 or len(dims) == 3) and (not isinstance(heads, int) or axis != 1):
        return None
    split = [d for d in (heads, dims[-1]) if isinstance(d, int)]
    batch, length, width = dims[0], dims[axis], found.width

    def build(tape: Tape) -> ir.Value:
        x = found.x
        result = facts.dtype(found.root)
        if found.order is not None:
            x = tape.op("Gather", [x, tape.ints(*found.order)], facts.dtype(x), dims, axis=-1)
        if facts.dtype(found.x) != dtype:
            x = tape.op("Cast", [x], dtype, dims, to=dtype)
        caches = [
            _cache(tape, found.x, cut, batch, length, width // 2, dtype) for cut in (cosine, sine)
        ]
        if found.backwards != (found.sines[0].sign < 0):
            caches[1] = tape.op("Neg", [caches[1]], dtype, facts_dims(batch, length, width // 2))
        flat = axis == 1 and len(dims) == 4
        shape = dims
        if flat:
            shape = (
                batch,
                length,
                heads * dims[3] if isinstance(heads, int) and isinstance(dims[3], int) else dims[3],
            )
            x = tape.op("Reshape", [x, tape.ints(0, 0, -1)], dtype, shape)
        y = tape.op(
            "RotaryEmbedding",
            [x, *caches],
            dtype,
            shape,
            interleaved=int(found.interleaved),
            num_heads=heads if axis == 1 else None,
            rotary_embedding_dim=width if width != dims[-1] else None,
        )
        if flat:
            y = tape.op("Reshape", [y, tape.ints(0, 0, *split)], dtype, dims)
        return tape.op("Cast", [y], result, dims, to=result) if result != dtype else y

    return Standard("RotaryEmbedding", 23, build)


def facts_dims(batch: Dim, length: Dim, half: int) -> Dims:
    """The sizes of a cache."""
    return (batch, length, half)


@dataclass(frozen=True, slots=True)
class Cut:
    """Evenly spaced lanes of one table, whose last axes, of sizes `shape`, hold the lanes."""

    table: ir.Value
    shape: tuple[int, ...]
    first: int
    step: int
    count: int

    def dims(self, facts: Facts) -> Dims | None:
        """The sizes of the table with its lanes along one axis."""
        dims = facts.dims(self.table)
        return None if dims is None else (*dims[: len(dims) - len(self.shape)], prod(self.shape))


def _cut(lanes: Sequence[Coefficient]) -> Cut | None:
    """The one table and the evenly spaced lanes of it that hold the coefficients."""
    values = {c.value for c in lanes}
    signs = {c.sign for c in lanes}
    places = [c.at for c in lanes]
    step = places[1] - places[0] if len(places) > 1 else 1
    if len(values) != 1 or len(signs) != 1 or step < 1 or len({c.shape for c in lanes}) != 1:
        return None
    if not all(c.aligned for c in lanes) or any(b - a != step for a, b in pairwise(places)):
        return None
    return Cut(values.pop(), lanes[0].shape, places[0], step, len(places))


def _sequence_axis(dims: Dims, tables: Sequence[Dims | None]) -> int | None:
    """The axis of x along which the angles vary, besides the batch."""
    axes = set()
    for own in tables:
        if own is None or len(own) > len(dims):
            return None
        padded = (1,) * (len(dims) - len(own)) + own
        for axis in range(1, len(dims) - 1):
            if padded[axis] != 1:
                if padded[axis] != dims[axis]:
                    return None
                axes.add(axis)
        if padded[0] not in (1, dims[0]):
            return None
    if not axes and len(dims) == 4:
        return 2 if dims[2] == 1 else None
    return axes.pop() if len(axes) == 1 else None


def _cache(
    tape: Tape, x: ir.Value, cut: Cut, batch: Dim, length: Dim, half: int, dtype: ir.DataType | None
) -> ir.Value:
    """[batch, length, half] from a table that broadcasts over x; shared by every rotation that reads the same lanes."""
    key = ("cache", cut, batch, length)
    if key in tape.shared:
        return tape.shared[key]
    value, dims = cut.table, cut.dims(tape.facts)
    assert dims is not None
    first, step, count = cut.first, cut.step, cut.count
    if len(cut.shape) > 1:
        flat = tape.ints(*[0] * (len(dims) - 1), -1)
        value = tape.op("Reshape", [value, flat], dtype, dims)
    if count != dims[-1] or step != 1:
        bounds = [
            tape.ints(first),
            tape.ints(first + step * (count - 1) + 1),
            tape.ints(-1),
            tape.ints(step),
        ]
        dims = (*dims[:-1], count)
        value = tape.op("Slice", [value, *bounds], dtype, dims)
    rank = len(dims)
    if rank == 4:
        gone = 2 if dims[2] == 1 and dims[1] == length and length != 1 else 1
        dims = tuple(d for i, d in enumerate(dims) if i != gone)
        value = tape.op("Squeeze", [value, tape.ints(gone)], dtype, dims)
    elif (
        rank == 3 and dims[1] == 1 and dims[0] == length and length != 1
    ):  # [S, 1, D] of a [B, S, H, D] tensor
        dims = (1, dims[0], dims[2])
        value = tape.op("Reshape", [value, tape.ints(1, -1, count)], dtype, dims)
    elif rank == 2:
        dims = (1, *dims)
        value = tape.op("Unsqueeze", [value, tape.ints(0)], dtype, dims)
    if dims[0] != batch or dims[1] != length:
        size = tape.op("Shape", [x], ir.DataType.INT64, (1,), start=0, end=1)
        target = tape.op("Concat", [size, tape.ints(1, 1)], ir.DataType.INT64, (3,), axis=0)
        value = tape.op("Expand", [value, target], dtype, (batch, length, half))
    tape.shared[key] = value
    return value
