"""Fold what torch writes around the operators: constants, repeated nodes, detours of shape arithmetic.

Reshape(Squeeze(n), [1])                   -> n               for a vector n of one
Concat(Shape(x)[0:1], Shape(x)[1:2])       -> Shape(x)[0:2]
Constant                                   -> initializer, equal ones once
"""

import itertools

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer

from .driver import Done


def fold_constants(model: ir.Model) -> Done:
    """Compute what depends on no input and no weight; afterwards every value has a dtype and a shape."""
    before = model.graph.num_nodes()
    optimizer.fold_constants(model, onnx_shape_inference=True)
    common.RemoveUnusedNodesPass()(model)
    return Done("fold constants", before - model.graph.num_nodes())


def fold_shapes(model: ir.Model) -> Done:
    """Take the two short cuts through shape arithmetic above, and compute nothing twice."""
    before = model.graph.num_nodes()
    common.CommonSubexpressionEliminationPass()(model)
    for node in model.graph:
        _undo_squeeze(node)
    for node in model.graph:
        _join_slices(model.graph, node)
    common.IdentityEliminationPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return Done("fold shapes", before - model.graph.num_nodes())


def lift_constants(model: ir.Model) -> Done:
    """Constant nodes become initializers, and equal constants one."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    first: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None:
            continue
        key = (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
        if first.setdefault(key, value) is not value:
            value.replace_all_uses_with(first[key])
            del model.graph.initializers[name]
    return Done("lift constants", len(first))


def _undo_squeeze(node: ir.Node) -> None:
    """Readers of a number that was made a scalar and a vector of one again read the first vector."""
    if not _is(node, "Reshape") or node.outputs[0].is_graph_output():
        return
    scalar, target = node.inputs[:2]
    squeeze = scalar.producer() if scalar is not None else None
    if squeeze is None or not _is(squeeze, "Squeeze") or target is None:
        return
    vector = squeeze.inputs[0]
    one = target.const_value is not None and target.const_value.numpy().tolist() in ([-1], [1])
    if one and vector is not None and vector.shape is not None and vector.shape.dims == (1,):
        node.outputs[0].replace_all_uses_with(vector)


def _join_slices(graph: ir.Graph, node: ir.Node) -> None:
    """Put one Shape in the place of a Concat of neighbouring slices of the same shape."""
    slices = [value.producer() for value in node.inputs if value is not None]
    if not _is(node, "Concat") or not all(s is not None and _is(s, "Shape") for s in slices):
        return
    shapes = [s for s in slices if s is not None]
    bounds = [(s.attributes.get_int("start", 0), s.attributes.get_int("end", None)) for s in shapes]
    touching = all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    if not touching or len({s.inputs[0] for s in shapes}) > 1:
        return
    attributes = [ir.AttrInt64("start", bounds[0][0])]
    if bounds[-1][1] is not None:
        attributes.append(ir.AttrInt64("end", bounds[-1][1]))
    output = ir.Value(
        name=node.outputs[0].name, type=node.outputs[0].type, shape=node.outputs[0].shape
    )
    joined = ir.Node("", "Shape", shapes[0].inputs[:1], attributes, outputs=[output])
    joined.metadata_props.update(node.metadata_props)  # it stands in the same module
    graph.insert_before(node, joined)
    node.outputs[0].replace_all_uses_with(output)


def _is(node: ir.Node, op_type: str) -> bool:
    return (node.domain, node.op_type) == ("", op_type)
