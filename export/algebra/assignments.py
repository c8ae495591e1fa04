"""Assignment to a slice of the last axis, y[..., start::step] = updates, as exporters write it with ScatterND.

TorchScript: indices [*grid, rank], a column for each axis: all of the axes before, a slice of the last
dynamo:      the axis moved to the front by Transpose, indices [count, 1], and moved back
"""

from itertools import pairwise

import onnx_ir as ir

from .facts import Facts
from .keys import slice_bounds
from .lane_shapes import Evaluate, Lanes, Shape, lane_shape

VIEWS = {"Reshape", "Unsqueeze", "Squeeze", "Cast", "Identity"}


def assigned(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    """The lanes of a ScatterND whose indices are a full grid with a slice of the last axis."""
    data, indices, updates = node.inputs
    dims, grid = facts.dims(value), facts.dims(indices)
    if data is None or indices is None or updates is None or dims is None or grid is None:
        return None
    rank = len(dims)
    columns = facts.peel(indices).producer()
    if len(shape) != 1 or columns is None or columns.op_type != "Concat" or grid[-1] != rank:
        return None
    if facts.dims(updates) != grid[:-1] or grid[: rank - 1] != dims[:-1]:
        return None
    if len(columns.inputs) != rank or columns.attributes.get_int("axis", 0) % (rank + 1) != rank:
        return None
    read = [_column(facts, v) for v in columns.inputs]
    if any(c is None for c in read) or any(c != (i - rank, 0, 1) for i, c in enumerate(read[:-1])):
        return None
    last = read[-1]
    assert last is not None
    return _put(facts, data, updates, shape, last[1:], evaluate) if last[0] == -1 else None


def assigned_in_front(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    """The lanes of a Transpose that swaps the first and the last axis of a ScatterND into the first."""
    scatter, dims = node.inputs[0], facts.dims(value)
    made = facts.peel(scatter).producer() if scatter is not None else None
    if made is None or made.op_type != "ScatterND" or made.domain or dims is None:
        return None
    swap = [len(dims) - 1, *range(1, len(dims) - 1), 0]
    if len(shape) != 1 or list(node.attributes.get_ints("perm", [])) != swap:
        return None
    data, updates = (_below_swap(facts, v, swap) for v in (made.inputs[0], made.inputs[2]))
    indices = made.inputs[1]
    if data is None or updates is None or indices is None or facts.dims(data) != dims:
        return None
    index_dims = facts.dims(indices)
    if index_dims is None or len(index_dims) != 2 or index_dims[1] != 1:
        return None
    wanted = (*dims[:-1], index_dims[0])
    column = _column(facts, indices)
    if facts.dims(updates) != wanted or column is None:
        return None
    return _put(facts, data, updates, shape, column[1:], evaluate)


def _below_swap(facts: Facts, value: ir.Value | None, swap: list[int]) -> ir.Value | None:
    node = facts.peel(value).producer() if value is not None else None
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    return node.inputs[0] if list(node.attributes.get_ints("perm", [])) == swap else None


def _put(
    facts: Facts,
    data: ir.Value,
    updates: ir.Value,
    shape: Shape,
    places: tuple[int, int],
    evaluate: Evaluate,
) -> Lanes | None:
    count = lane_shape(facts.dims(updates), 1)
    base = evaluate(data, shape)
    new = evaluate(updates, count) if count is not None else None
    start, step = places
    if base is None or new is None or start < 0 or step < 1:
        return None
    at = [start + step * i for i in range(len(new))]
    if at and at[-1] >= shape[0]:
        return None
    lanes = base.copy()
    for i, terms in zip(at, new, strict=True):
        lanes[i] = terms
    return lanes


def _column(facts: Facts, value: ir.Value | None) -> tuple[int, int, int] | None:
    """(axis from the end, start, step) of indices [..., 1] that count along one axis of the rest."""
    value = facts.peel(value) if value is not None else None
    node = value.producer() if value is not None else None
    dims = facts.dims(value)
    if not dims or dims[-1] != 1:
        return None
    viewed = node is not None and node.op_type in ("Unsqueeze", "Reshape")
    below = node.inputs[0] if node is not None and viewed else value
    if below is not value and facts.dims(below) != dims[:-1]:
        return None
    return _counting(facts, below)


def _counting(facts: Facts, value: ir.Value | None) -> tuple[int, int, int] | None:
    """(axis from the end, start, step) of whole numbers that count along one axis and are alike along the others."""
    axis: int | None = None
    first, stride = 0, 1  # element i is element first + stride * i of what is below
    for _ in range(12):
        node, dims = (value.producer() if value is not None else None), facts.dims(value)
        if value is None or dims is None:
            return None
        if node is not None and node.op_type == "Expand" and not node.domain:
            value = node.inputs[0]
            continue
        spread = [i - len(dims) for i, d in enumerate(dims) if d != 1]
        if len(spread) != 1:
            return None
        axis = spread[0] if axis is None else axis
        line = _line(facts, value, node)
        if line is not None:
            return axis, line[0] + line[1] * first, line[1] * stride
        if node is None or node.domain:
            return None
        if node.op_type == "Slice":
            bounds = slice_bounds(facts, node)
            if bounds is None or len(bounds) != 1:
                return None
            first, stride = bounds[0][1] + bounds[0][2] * first, bounds[0][2] * stride
        elif node.op_type not in VIEWS:
            return None
        value = node.inputs[0]
    return None


def _line(facts: Facts, value: ir.Value, node: ir.Node | None) -> tuple[int, int] | None:
    """(start, step) of a Range, or of a constant that is evenly spaced."""
    if node is not None and node.op_type == "Range" and not node.domain:
        start, step = facts.scalar(node.inputs[0]), facts.scalar(node.inputs[2])
        return None if start is None or step is None else (int(start), int(step))
    array = facts.array(value) if facts.constant(value) else None
    if array is None or not array.size:
        return None
    numbers = [int(x) for x in array.reshape(-1)]
    steps = {b - a for a, b in pairwise(numbers)}
    return (numbers[0], steps.pop() if steps else 1) if len(steps) < 2 else None
