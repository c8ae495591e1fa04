"""Moves of the last axes ("lanes") of a tensor: slices, splits, stacks, permutations, repeats, as array indexing.

A value whose lanes are [8, 2] is described by an object array of that shape, one entry per lane; the axes before
the lanes (batch, heads, sequence) stay as they are, or the operator is no move of lanes.
"""

import math

import numpy as np
import onnx_ir as ir

from .assignments import assigned, assigned_in_front
from .facts import Facts
from .keys import slice_bounds
from .lane_shapes import Evaluate, Lanes, Shape, lane_shape


def move(facts: Facts, value: ir.Value, shape: Shape, evaluate: Evaluate) -> Lanes | None:
    """The lanes of `value` from those of its producer's inputs; None where the producer is no move of lanes."""
    node = value.producer()
    if node is None or node.domain:
        return None
    handler = _HANDLERS.get(node.op_type)
    dims = facts.dims(value)
    if handler is None or dims is None or len(dims) < len(shape):
        return None
    return handler(facts, node, value, shape, evaluate)


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _lane_axis(facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, default: int) -> int:
    """The node's axis counted within the lanes; negative where it lies before them."""
    dims = facts.dims(value)
    assert dims is not None
    return node.attributes.get_int("axis", default) % len(dims) - (len(dims) - len(shape))


def _same(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below = _first(node)
    return evaluate(below, shape) if facts.dims(below) == facts.dims(value) else None


def _slice(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below = _first(node)
    inside = lane_shape(facts.dims(below), len(shape))
    bounds, dims = slice_bounds(facts, node), facts.dims(value)
    if inside is None or bounds is None or dims is None:
        return None
    index = [slice(None)] * len(shape)
    for axis, start, step in bounds:
        at = axis - (len(dims) - len(shape))
        if at < 0:
            if dims[axis] != (facts.dims(below) or dims)[axis]:
                return None
            continue
        stop = start + step * shape[at]
        index[at] = slice(start, stop if stop >= 0 else None, step)
    lanes = evaluate(below, inside)
    return None if lanes is None else lanes[tuple(index)]


def _split(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below = _first(node)
    inside = lane_shape(facts.dims(below), len(shape))
    at = _lane_axis(facts, node, value, shape, 0)
    parts = [lane_shape(facts.dims(o), len(shape)) for o in node.outputs]
    if inside is None or at < 0 or any(p is None for p in parts):
        return None
    start = sum(p[at] for p in parts[: value.index()] if p is not None)
    lanes = evaluate(below, inside)
    return None if lanes is None else np.take(lanes, range(start, start + shape[at]), axis=at)


def _gather(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below, indices = _first(node), node.inputs[1]
    before, dims = facts.dims(below), facts.dims(value)
    array = facts.array(indices) if indices is not None else None
    if before is None or dims is None or array is None or array.ndim > 1:
        return None
    axis = node.attributes.get_int("axis", 0) % len(before)
    count = len(shape) + 1 - array.ndim
    at = axis - (len(before) - count)
    inside = lane_shape(before, count)
    if at < 0 or inside is None:
        return None
    lanes = evaluate(below, inside)
    return None if lanes is None else np.take(lanes, array.astype(np.int64), axis=at)


def _concat(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    at = _lane_axis(facts, node, value, shape, 0)
    if at < 0:
        return None
    parts = []
    for part in node.inputs:
        inside = lane_shape(facts.dims(part), len(shape))
        lanes = evaluate(part, inside) if part is not None and inside is not None else None
        if lanes is None:
            return None
        parts.append(lanes)
    return np.concatenate(parts, axis=at)


def _view(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    """Reshape, Unsqueeze and Squeeze that regroup the lanes and keep the axes before them."""
    below = _first(node)
    before, dims = facts.dims(below), facts.dims(value)
    if before is None or dims is None:
        return None
    prefix = dims[: len(dims) - len(shape)]
    if before[: len(prefix)] != prefix:
        return None
    inside = lane_shape(before, len(before) - len(prefix))
    if inside is None or not inside or math.prod(inside) != math.prod(shape):
        return None
    lanes = evaluate(below, inside)
    return None if lanes is None else lanes.reshape(shape)


def _transpose(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below = _first(node)
    before = facts.dims(below)
    if before is None:
        return None
    perm = node.attributes.get_ints("perm", list(range(len(before)))[::-1])
    start = len(before) - len(shape)
    inside = lane_shape(before, len(shape))
    if list(perm[:start]) != list(range(start)) or inside is None:
        return assigned_in_front(facts, node, value, shape, evaluate)
    lanes = evaluate(below, inside)
    return None if lanes is None else lanes.transpose([p - start for p in perm[start:]])


def _expand(
    facts: Facts, node: ir.Node, value: ir.Value, shape: Shape, evaluate: Evaluate
) -> Lanes | None:
    below = _first(node)
    before, dims = facts.dims(below), facts.dims(value)
    if before is None or dims is None or len(before) != len(dims):
        return None
    start = len(dims) - len(shape)
    inside = lane_shape(before, len(shape))
    if before[:start] != dims[:start] or inside is None:
        return None
    lanes = evaluate(below, inside)
    if lanes is None:
        return None
    if node.op_type == "Tile":
        return np.tile(lanes, [s // i for s, i in zip(shape, inside, strict=True)])
    return np.broadcast_to(lanes, shape)


_HANDLERS = {
    "Identity": _same,
    "Cast": _same,
    "CastLike": _same,
    "Dropout": _same,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "Reshape": _view,
    "Unsqueeze": _view,
    "Squeeze": _view,
    "Flatten": _view,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _expand,
    "ScatterND": assigned,
}
