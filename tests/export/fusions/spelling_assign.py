"""Assignment to a slice of the last axis of [b, heads, s, size], as the two exporters write it."""

from collections.abc import Sequence

import numpy as np

from .spelling import Speller


def assign(s: Speller, base: str, updates: str, lanes: Sequence[int]) -> str:
    """base[..., lanes] = updates, with lanes evenly spaced."""
    if s.pick("torchscript", "dynamo") == "dynamo":
        return _in_front(s, base, updates, lanes)
    return _grid(s, base, updates, lanes)


def _in_front(s: Speller, base: str, updates: str, lanes: Sequence[int]) -> str:
    """The last axis is brought to the front, where ScatterND takes one number an index."""
    places = _counting(s, lanes)
    swap = [3, 1, 2, 0]
    data, new = (s.op("Transpose", v, perm=swap) for v in (base, updates))
    return s.op(
        "Transpose", s.op("ScatterND", data, s.op("Unsqueeze", places, s.ints(-1)), new), perm=swap
    )


def _grid(s: Speller, base: str, updates: str, lanes: Sequence[int]) -> str:
    """Every element's own four indices."""
    size = s.op("Shape", base)
    zero, one = s.constant(0, np.int64), s.constant(1, np.int64)
    lengths = [s.op("Gather", size, s.constant(i, np.int64), axis=0) for i in (0, 1, 2)]
    columns = [s.op("Range", zero, n, one) for n in lengths] + [_counting(s, lanes)]
    whole = s.op(
        "Concat",
        *(s.op("Unsqueeze", n, s.ints(0)) for n in lengths),
        s.ints(len(lanes)),
        axis=0,
    )
    parts = []
    for axis, column in enumerate(columns):
        shaped = s.op("Reshape", column, s.ints(-1, *[1] * (3 - axis))) if axis < 3 else column
        parts.append(s.op("Unsqueeze", s.op("Expand", shaped, whole), s.ints(-1)))
    return s.op("ScatterND", base, s.op("Concat", *parts, axis=-1), updates)


def _counting(s: Speller, lanes: Sequence[int]) -> str:
    """The lanes as a constant, or as a slice of a range."""
    if s.pick(True, False):
        return s.constant(list(lanes), np.int64)
    whole = s.op("Range", *(s.constant(v, np.int64) for v in (0, lanes[-1] + 1, 1)))
    return s.slice(whole, 0, lanes[0], 2**62, lanes[1] - lanes[0])
