"""Shapes and types that a graph leaves out, by ONNX's own shape inference: no weight is read.

    model with values that declare nothing -> the same values, with what ONNX infers for them

Exporters leave out what their rewrites added (the cos and sin of a RotaryEmbedding, say), and rules that ask for a shape
would pass such values over.
"""

import functools
import math
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx_ir import serde

from .rules import nodes_of

SMALL = 1 << 10  # bytes of a constant whose numbers inference may use: sizes, axes, pads
MOST_NUMBERS = 1 << 16  # sizes that inference may carry along in one value
DONE = "blockforge.shapes"  # on a graph's meta: inference has nothing to add
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
# Operators whose integer results ONNX's inference computes; of these only Concat makes more numbers than it is given.
CARRIED = frozenset(
    {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)


def infer_shapes(model: ir.Model) -> int:
    """Give values of `model` without a declared shape or type what ONNX infers; returns how many got something.

    What is declared stays, but for axes without size and name. A graph that ONNX cannot read is left as it is.
    """
    if DONE in model.graph.meta or not any(_is_open(v) for v in _computed(model)):
        return 0
    try:
        outline, nodes = _outline(model)
        told = onnx.shape_inference.infer_shapes(outline, data_prop=_may_carry(model))
    except (
        Exception
    ):  # protobuf's, ONNX's and onnx_ir's own kinds, each for a graph that does not fit
        return 0
    filled = sum(_filled(model.graph, nodes, told.graph))
    if not model.functions:
        model.graph.meta[DONE] = True
    return filled


def _computed(model: ir.Model) -> Iterator[ir.Value]:
    for node in nodes_of(model.graph):
        yield from node.outputs


def _is_open(value: ir.Value) -> bool:
    if value.shape is None or value.type is None:
        return True
    return any(not isinstance(d, int) and d.value is None for d in value.shape)


def _outline(model: ir.Model) -> tuple[onnx.ModelProto, list[ir.Node]]:
    """The graph without its large constants (they become inputs), and the nodes that are left in it."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    domains = {
        node.domain: 1 for node in nodes_of(model.graph)
    }  # ONNX stops at one without a version
    for domain, version in (domains | dict(model.opset_imports)).items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        serde.serialize_function_into(proto.functions.add(), function)
    graph, nodes = proto.graph, []
    graph.name = "outline"
    for value in model.graph.inputs:
        serde.serialize_value_into(graph.input.add(), value)
    for name, value in model.graph.initializers.items():
        _constant(graph, name, value.const_value)
    for node in model.graph:
        tensor = _held(node)
        if tensor is not None and tensor.nbytes > SMALL:
            _constant(graph, str(node.outputs[0].name), tensor)
            continue
        nodes.append(node)
        serde.serialize_node_into(graph.node.add(), node)
        for value in node.outputs:
            if value.name and value.type is not None and not value.is_graph_output():
                serde.serialize_value_into(graph.value_info.add(), value)
    for value in model.graph.outputs:
        serde.serialize_value_into(graph.output.add(), value)
    return proto, nodes


def _held(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def _constant(graph: onnx.GraphProto, name: str, tensor: ir.TensorProtocol | None) -> None:
    if tensor is None:
        return
    if tensor.dtype in INTEGERS and tensor.nbytes <= SMALL:
        serde.serialize_tensor_into(graph.initializer.add(), tensor)
        graph.initializer[-1].name = name
        return
    dims = [int(d) for d in tensor.shape.numpy()]
    graph.input.append(onnx.helper.make_tensor_value_info(name, int(tensor.dtype), dims))


def _may_carry(model: ir.Model) -> bool:
    """Whether inference may follow the numbers of sizes: never where Concat after Concat would make too many of them."""
    if model.functions:
        return False  # what a body is given is not known here
    nodes = nodes_of(model.graph)
    if not any(node.op_type == "Concat" for node in nodes):
        return True
    counts: dict[ir.Value, int] = {}

    def given(values: Iterable[ir.Value | None]) -> list[int]:
        return [counts[v] if v in counts else _numbers(v) for v in values if v is not None]

    for node in nodes:
        if node.op_type == "Shape":
            made = 64
        elif node.op_type == "Constant":
            made = _constant_numbers(node)
        elif node.op_type in CARRIED:
            held = given(node.inputs)
            made = sum(held) if node.op_type == "Concat" else max(held, default=0)
        else:
            made = 1 if node.op_type == "Size" else 0
        if made > MOST_NUMBERS:
            return False
        counts.update(dict.fromkeys(node.outputs, made))
    return True


def _constant_numbers(node: ir.Node) -> int:
    tensor = _held(node)
    if tensor is not None:
        return 0 if tensor.nbytes > SMALL else math.prod(int(d) for d in tensor.shape.numpy())
    return (
        sum(len(a.as_ints()) for a in node.attributes.values() if a.type == ir.AttributeType.INTS)
        or 1
    )


def _numbers(value: ir.Value) -> int:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in INTEGERS or tensor.nbytes > SMALL:
        return 0
    return math.prod(int(d) for d in tensor.shape.numpy())


def _filled(graph: ir.Graph, nodes: Iterable[ir.Node], told: onnx.GraphProto) -> Iterator[int]:
    """Fill in what `told`, with the same nodes, says of values of `graph`; one number for each that got something."""
    known = {info.name: info.type.SerializeToString() for info in (*told.value_info, *told.output)}
    with_attributes = []
    for place, node in enumerate(nodes):
        for value in node.outputs:
            found = known.get(value.name or "") if _is_open(value) else None
            if found is not None and _fill(value, found):
                yield 1
        if node.attributes:
            with_attributes.append((node, told.node[place]))
    for node, proto in with_attributes:
        inner = {a.name: a for a in proto.attribute if a.type == onnx.AttributeProto.GRAPH}
        for name, attribute in inner.items():
            body = node.attributes[name].as_graph()
            yield from _filled(body, body, attribute.g)


def _fill(value: ir.Value, found: bytes) -> bool:
    dtype, dims = _read(found)
    new = value.type is None and dtype is not None
    if new and dtype is not None:
        value.type = ir.TensorType(dtype)
    if dims is None:
        return new
    if value.shape is None:
        value.shape = ir.Shape(dims)
        return True
    if len(value.shape) != len(dims):
        return new
    declared = [d if isinstance(d, int) else d.value for d in value.shape]
    merged = [told if old is None else old for old, told in zip(declared, dims, strict=True)]
    if merged == declared:
        return new
    value.shape = ir.Shape(merged)
    return True


@functools.lru_cache(4096)
def _read(found: bytes) -> tuple[ir.DataType | None, tuple[int | str | None, ...] | None]:
    """(element type, axes) of a serialised TypeProto: None for no tensor, or without a rank; most values of a graph share one."""
    tensor = onnx.TypeProto.FromString(found).tensor_type
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return ir.DataType(tensor.elem_type) if tensor.elem_type else None, shape


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value
    named = dim.HasField("dim_param") and not dim.dim_param.startswith("unk__")  # ONNX's own names
    return dim.dim_param if named else None
