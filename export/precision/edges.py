"""Casts at the edge, where the outside speaks another float type than the graph.

x: io type -> Cast -> graph -> Cast -> y: io type
"""

import functools
from collections.abc import Callable

import onnx_ir as ir

from ...core.dtypes import DType
from ..driver import Done


def cast_edges(io: DType) -> Callable[[ir.Model], Done]:
    """A pass that gives every float input and output the type `io`, with a Cast where the graph has another."""
    return functools.partial(_cast_edges, io=ir.DataType(io.onnx))


def _cast_edges(model: ir.Model, *, io: ir.DataType) -> Done:
    graph, casts = model.graph, 0
    for value in graph.inputs:
        if _differs(value, io):
            inner = ir.Value(name=f"{value.name}/cast", type=_type(value), shape=value.shape)
            value.replace_all_uses_with(inner)
            value.dtype = io
            graph.insert_before(next(iter(graph)), _cast(value, inner))
            casts += 1
    for position, value in enumerate(list(graph.outputs)):
        if _differs(value, io):
            outer = ir.Value(name=value.name, type=ir.TensorType(io), shape=value.shape)
            value.name = f"{value.name}/cast"
            graph.append(_cast(value, outer))
            graph.outputs[position] = outer
            casts += 1
    return Done(f"cast edges to {io.name}", casts)


def _differs(value: ir.Value, io: ir.DataType) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point() and value.dtype != io


def _type(value: ir.Value) -> ir.TensorType:
    """A type of its own: two values that share one change together."""
    assert value.dtype is not None
    return ir.TensorType(value.dtype)


def _cast(source: ir.Value, target: ir.Value) -> ir.Node:
    assert target.dtype is not None
    return ir.Node("", "Cast", [source], [ir.AttrInt64("to", target.dtype)], outputs=[target])
