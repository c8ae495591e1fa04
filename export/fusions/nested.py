"""Undo a merge that exporters do: Concat(rest, a, b) -> Concat(rest, Concat(a, b)) where a and b are a rotation's halves."""

import numpy as np
import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.lane_shapes import Lanes, lane_shape
from ..algebra.lanes import LaneReader
from .match import node_name, shape_from
from .rope import rotation_of
from .rope_starts import is_product_sum


def nest_concats(graph: ir.Graph) -> list[str]:
    """Split such nodes in place; returns their names."""
    candidates = [
        n for n in graph if n.domain == "" and n.op_type == "Concat" and len(n.inputs) > 2
    ]
    if not candidates:
        return []
    facts = Facts(graph)
    reader = LaneReader(facts)
    return [node_name(n) for n in candidates if _nest(facts, reader, n)]


def _nest(facts: Facts, reader: LaneReader, node: ir.Node) -> bool:
    dims = facts.dims(node.outputs[0])
    if dims is None or node.attributes.get_int("axis", 0) % len(dims) != len(dims) - 1:
        return False
    for at in range(len(node.inputs) - 1):
        pair = node.inputs[at], node.inputs[at + 1]
        if not all(is_product_sum(facts, v) for v in pair):
            continue
        lanes = [_lanes(facts, reader, v) for v in pair if v is not None]
        known = [x for x in lanes if x is not None]
        if len(known) < 2 or rotation_of(reader, node.outputs[0], np.concatenate(known))[0] is None:
            continue
        inner = ir.node("Concat", pair, attributes={"axis": -1})
        value = inner.outputs[0]
        value.name = f"{node.outputs[0].name}_rotated"
        value.type = node.outputs[0].type
        value.shape = shape_from((*dims[:-1], sum(len(x) for x in known)))
        inner.name = f"{node_name(node)}_rotated"
        facts.graph.insert_before(node, inner)
        inputs = [*node.inputs[:at], value, *node.inputs[at + 2 :]]
        for position, new in enumerate(inputs):
            node.replace_input_with(position, new)
        node.resize_inputs(len(inputs))
        return True
    return False


def _lanes(facts: Facts, reader: LaneReader, value: ir.Value) -> Lanes | None:
    shape = lane_shape(facts.dims(value), 1)
    return reader.data(value, shape) if shape is not None else None
