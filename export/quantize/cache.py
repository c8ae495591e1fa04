"""Find the key-value caches of a decoder: a graph input that one node extends into a graph output.

    present = TensorScatter(past, update, write_indices)
    present = Concat(past, update)                          along the sequence axis
    y, present_key, present_value = Attention(q, k, v, mask, past_key, past_value)

past and present may be casts of what the node reads and gives.
"""

from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import UsageError

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
ROLES = {  # operator -> (input with the past, input with the update, output with both), once for each cache
    "TensorScatter": ((0, 1, 0),),
    "Concat": ((0, 1, 0),),
    "Attention": ((4, 1, 1), (5, 2, 2)),
}
PASSING = frozenset({"Cast", "Identity"})


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """One cache. past, present: graph input and output; held, update, whole: what `node` reads as past, adds to it, and
    gives; index: of the update among the node's inputs."""

    past: ir.Value
    present: ir.Value
    node: ir.Node
    index: int
    held: ir.Value
    update: ir.Value
    whole: ir.Value

    @property
    def name(self) -> str:
        """The input's name, under which its scale is recorded."""
        return str(self.past.name)


def find_caches(model: ir.Model) -> list[Cache]:
    """Every cache of the main graph that is a 16- or 32-bit float, in the order of its nodes."""
    found = []
    for node in model.graph:
        if node.domain not in ("", "ai.onnx"):
            continue
        for roles in ROLES.get(node.op_type, ()):
            cache = _cache(node, *roles)
            if cache is not None:
                found.append(cache)
    return found


def require_caches(model: ir.Model) -> list[Cache]:
    """find_caches; UsageError where there is none and none is FP8 already."""
    found = find_caches(model)
    inputs = model.graph.inputs
    if not found and not any(v.dtype == ir.DataType.FLOAT8E4M3FN for v in inputs):
        raise UsageError(
            "store the KV cache in FP8 (kv_cache)",
            found="no TensorScatter, Concat or Attention extends a graph input into a graph output; the inputs are "
            + ", ".join(str(v.name) for v in inputs),
            fix="Export the decoder with past and present keys and values, or leave kv_cache off",
        )
    return found


def _cache(node: ir.Node, past_at: int, update_at: int, whole_at: int) -> Cache | None:
    inputs, outputs = node.inputs, node.outputs
    if len(inputs) <= max(past_at, update_at) or len(outputs) <= whole_at:
        return None
    held, update, whole = inputs[past_at], inputs[update_at], outputs[whole_at]
    if held is None or update is None or update.dtype not in FLOATS:
        return None
    if node.op_type == "Concat" and (len(inputs) != 2 or not _along_sequence(node, update)):
        return None
    past, present = _input_behind(held), _output_behind(whole)
    if past is None or present is None:
        return None
    return Cache(past, present, node, update_at, held, update, whole)


def _along_sequence(node: ir.Node, update: ir.Value) -> bool:
    """Whether the axis is neither the batch nor what one token's key is made of."""
    rank = 0 if update.shape is None else len(update.shape)
    axis = node.attributes.get_int("axis", 0)
    return 0 < (axis + rank if axis < 0 else axis) < rank - 1


def _input_behind(value: ir.Value) -> ir.Value | None:
    """The graph input that `value` is, or a cast of."""
    while not value.is_graph_input():
        node = value.producer()
        if node is None or node.op_type not in PASSING or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return value if value.dtype in FLOATS and not value.is_initializer() else None


def _output_behind(value: ir.Value) -> ir.Value | None:
    """The graph output that `value` is, or that is a cast of it."""
    if value.is_graph_output():
        return value if value.dtype in FLOATS else None
    for use in value.uses():
        if use.node.op_type in PASSING:
            found = _output_behind(use.node.outputs[0])
            if found is not None:
                return found
    return None
