"""What makes the file stand alone: bodies for our operators, fitting opset imports, no trace of the tracer."""

import onnx
import onnx_ir as ir

from ..core.domain import DOMAIN
from ..plugins.registry import find_plugin
from .driver import Done

PRODUCER = "blockforge"


def attach_bodies(model: ir.Model) -> Done:
    """Give every `blockforge` operator its body, so that any ONNX runtime can run it.

    Raises UsageError, which lists the operators, when the module emitted one that does not exist.
    """
    for name in sorted({n.op_type for n in model.graph.all_nodes() if n.domain == DOMAIN}):
        plugin = find_plugin(DOMAIN, name, model.opset_imports[DOMAIN])
        function = ir.serde.deserialize_function(plugin.body)
        model.functions[function.identifier()] = function
    return Done("attach bodies", len(model.functions))


def finish(model: ir.Model) -> Done:
    """Import the domains that are used, and forget how, where and from which source lines the graph was traced."""
    domains = {node.domain for node in model.graph.all_nodes()}
    unused = [d for d in model.opset_imports if d not in domains]
    for domain in unused:
        del model.opset_imports[domain]
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    model.ir_version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model.producer_name, model.producer_version = PRODUCER, None
    model.graph.name = PRODUCER
    values = ir.convenience.create_value_mapping(model.graph).values()
    holders: list[ir.Model | ir.Graph | ir.Node | ir.Value] = [model, model.graph, *values]
    for holder in (*holders, *model.graph.all_nodes()):
        holder.metadata_props.clear()
        holder.doc_string = None
    return Done("finish", len(unused))
