"""Bring any FP32 graph into the form that the other steps read.

no function but those that follow their inputs' types, no Constant node, no Cast between floats of one type,
every value typed, operators fused where asked
"""

import onnx_ir as ir
from onnx_ir.passes import common

from ...core.domain import DOMAIN
from ...core.errors import UsageError
from ...graph.dtype_rules import Operation, output_types
from ...graph.type_names import type_name
from ...graph.values import WIDE_FLOATS
from ...plugins.registry import registered
from ..fusions.fuse import fuse
from .options import PrecisionOptions

FLOAT = ir.DataType.FLOAT
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def already_typed(model: ir.Model) -> str | None:
    """The 16-bit type in which the graph computes its matrix products, None for an FP32 graph.

    Raises UsageError for a quantised graph: types come first, then Q/DQ.
    """
    for graph in model.graphs():
        for node in graph:
            if node.op_type in _QUANTISERS and node.domain in ("", "ai.onnx"):
                raise UsageError(
                    f"typing of {model.graph.name or 'the graph'}",
                    found=f"it is quantised already (node {node.name or node.op_type!r})",
                    fix="Type the FP32 graph first, then quantise the result",
                )
            if node.op_type in ("MatMul", "Gemm", "Attention", "Conv"):
                for value in node.inputs[:2]:
                    if value is not None and value.dtype in HALVES:
                        return type_name(value.dtype)
    weights = [v for v in model.graph.initializers.values() if v.dtype in HALVES]
    return type_name(weights[0].dtype) if weights else None


def prepare(model: ir.Model, options: PrecisionOptions) -> None:
    """Change `model` in place; its results stay those of the file."""
    common.InlinePass(criteria=lambda function: not follows_types(function))(model)
    if options.fuse:
        fuse(model)
        common.InlinePass(criteria=lambda function: not follows_types(function))(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    declare_types(model)
    for graph in model.graphs():
        for node in list(graph):
            _drop_needless_cast(graph, node)
    common.RemoveUnusedNodesPass()(model)
    unique_names(model)


def follows_types(function: ir.Function) -> bool:
    """Whether a body computes in FP32 what must be, whatever type its inputs have: those of our operators do."""
    operators = [n.op_type for n in function]
    for plugin in registered():
        ours = (function.domain, function.name) == (DOMAIN, plugin.table.name)
        if ours and operators == [n.op_type for n in plugin.body.node]:
            return True
    return False


def declare_types(model: ir.Model) -> None:
    """Give every value the type that its operator gives, where it declares none."""
    if all(v.type is not None for g in model.graphs() for n in g for v in n.outputs):
        return
    common.ShapeInferencePass()(model)
    for graph in model.graphs():
        for node in graph:
            types = tuple(None if v is None else v.dtype for v in node.inputs)
            given = output_types(operation(node, model), types)
            for value, dtype in zip(node.outputs, given, strict=True):
                if value.type is None and dtype is not None:
                    value.dtype = dtype


def operation(node: ir.Node, model: ir.Model) -> Operation:
    """What decides the types of the node's outputs."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = model.opset_imports.get(domain, 0)
    return Operation(node.op_type, domain, version, node.attributes, len(node.outputs))


def _drop_needless_cast(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a Cast or CastLike to the type that its input has; `.float()` leaves them in FP32 exports."""
    if node.op_type not in ("Cast", "CastLike") or node.domain not in ("", "ai.onnx"):
        return
    source, result = node.inputs[0], node.outputs[0]
    like = node.inputs[1] if node.op_type == "CastLike" else None
    to = like.dtype if like is not None else ir.DataType(node.attributes.get_int("to", 0))
    if source is None or to is None:
        return
    if node.op_type == "CastLike":
        cast = ir.Node("", "Cast", [source], [ir.AttrInt64("to", to)], outputs=[ir.Value()])
        cast.name, out = node.name, cast.outputs[0]
        out.name, out.type, out.shape = result.name, ir.TensorType(to), result.shape
        graph.insert_before(node, cast)
        ir.convenience.replace_all_uses_with(result, out, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        node, result = cast, out
    if to != source.dtype or to not in WIDE_FLOATS:
        return
    if not result.is_graph_output():
        result.replace_all_uses_with(source)
        graph.remove(node, safe=True)
    elif source.producer() is not None and not source.is_graph_output():
        name, result.name = result.name, None
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        source.name = name


def unique_names(model: ir.Model) -> None:
    """Number the names that two values or two nodes share, in inner graphs too; inputs and outputs keep theirs."""
    graphs = list(model.graphs())
    values = [*model.graph.inputs, *model.graph.outputs]
    for graph in graphs:
        values += [*graph.inputs, *graph.initializers.values()]
        values += [v for n in graph for v in n.outputs]
    for things in (list(dict.fromkeys(values)), [n for g in graphs for n in g]):
        taken = {t.name for t in things}
        seen: set[str] = set()
        for thing in things:
            if not thing.name:
                continue
            number, name = 0, thing.name
            while name in seen or (number and name in taken):
                number += 1
                name = f"{thing.name}_{number}"
            seen.add(name)
            if name != thing.name:
                thing.name = name
