"""The lanes of a value: its last axes, as an object array with one entry per lane."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .symbols import Dims

Lanes = np.ndarray  # of objects
Shape = tuple[int, ...]
Evaluate = Callable[[ir.Value, Shape], Lanes | None]


def lane_shape(dims: Dims | None, count: int) -> Shape | None:
    """The sizes of the last `count` axes when they are all known."""
    if dims is None or len(dims) < count:
        return None
    sizes = dims[len(dims) - count :]
    known = tuple(d for d in sizes if isinstance(d, int))
    return known if len(known) == count else None
