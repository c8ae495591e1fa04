"""TensorScatter into what is no graph input -> the same by position, for a cache that is stored in another type.

    y[b, p] = update[b, p - write[b]] where 0 <= p - write[b] < length of update, else cache[b, p]

TensorRT's KVCacheUpdate writes into a graph input of 16 or 32 bits. A cache in FP8 is dequantised first, so it is none.
"""

import onnx_ir as ir

from .edit import Inserter, replace_output

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


def spell_out_scatter(model: ir.Model) -> list[str]:
    """Rewrite every linear TensorScatter of `model` whose cache a node computes, in place."""
    changed = []
    for node in list(model.graph.all_nodes()):
        if node.op_type != "TensorScatter" or node.domain not in ("", "ai.onnx"):
            continue
        cache, update = node.inputs[:2]
        if cache is None or update is None or cache.producer() is None or cache.shape is None:
            continue
        if node.attributes.get_string("mode", "linear") != "linear":
            continue
        _spell_out(node, cache, update)
        changed.append(f"{node.name}: cache update spelled out")
    return changed


def _spell_out(node: ir.Node, cache: ir.Value, update: ir.Value) -> None:
    at = Inserter(node)
    assert cache.shape is not None
    rank = len(cache.shape)
    axis = node.attributes.get_int("axis", -2) % rank
    column = [1] * rank
    column[axis] = -1
    place = at.op("Reshape", [_positions(at, cache, axis), at.constant(column, INT64)], dtype=INT64)
    write = node.inputs[2] if len(node.inputs) > 2 else None
    if write is not None:
        starts = at.op("Reshape", [write, at.constant([-1, *[1] * (rank - 1)], INT64)], dtype=INT64)
        place = at.op("Sub", [place, starts], dtype=INT64)
    length = _size(at, update, axis)
    zero, one = at.constant([0], INT64), at.constant([1], INT64)
    after = at.op("GreaterOrEqual", [place, zero], dtype=BOOL)
    before = at.op("Less", [place, length], dtype=BOOL)
    inside = at.op("And", [after, before], dtype=BOOL)
    new = update
    if update.shape is None or update.shape[axis] != 1:  # one token broadcasts
        last = at.op("Sub", [length, one], dtype=INT64)
        index = at.op("Min", [at.op("Max", [place, zero], dtype=INT64), last], dtype=INT64)
        sizes = at.op("Shape", [cache], dtype=INT64)
        index = at.op("Expand", [index, sizes], dtype=INT64)
        new = at.op("GatherElements", [update, index], dtype=cache.dtype, axis=axis)
    result = at.op("Where", [inside, new, cache], dtype=cache.dtype, shape=cache.shape)
    replace_output(node.outputs[0], result)
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)


def _size(at: Inserter, value: ir.Value, axis: int) -> ir.Value:
    """The length of one axis, int64 [1]."""
    size = value.shape[axis] if value.shape is not None else None
    if isinstance(size, int):
        return at.constant([size], INT64)
    return at.op("Shape", [value], dtype=INT64, start=axis, end=axis + 1)


def _positions(at: Inserter, cache: ir.Value, axis: int) -> ir.Value:
    """0, 1, .. along the cache, int64 [length]."""
    assert cache.shape is not None
    size = cache.shape[axis]
    if isinstance(size, int):
        return at.constant(list(range(size)), INT64)
    length = at.op("Squeeze", [_size(at, cache, axis)], dtype=INT64)
    return at.op("Range", [at.constant(0, INT64), length, at.constant(1, INT64)], dtype=INT64)
