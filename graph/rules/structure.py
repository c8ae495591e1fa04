"""Rules about a graph's shape: order, names, known operators, opsets, numbers of inputs and outputs."""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ..dtype_rules import Signature, first_version, signature_of
from .rule import Fault, Rule, bodies, domain_of, graphs_of, node_label, subgraphs_of


def _order(model: ir.Model) -> Iterator[Fault]:
    yield from _order_of(model.graph, set())
    for function in model.functions.values():
        yield from _order_of(function, set())


def _order_of(graph: ir.Graph | ir.Function, outer: set[ir.Value]) -> Iterator[Fault]:
    known = outer | set(graph.inputs)
    if isinstance(graph, ir.Graph):
        known |= set(graph.initializers.values())
    produced = {value for node in graph for value in node.outputs}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                later = value in produced
                yield Fault(
                    node_label(node),
                    f"it reads {value.name!r}, which "
                    + ("a later node computes" if later else "nothing computes"),
                    "Sort the graph topologically" if later else "Compute it, or make it an input",
                )
        for inner in graphs_of(node) if node.attributes else ():
            yield from _order_of(inner, known)
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known:
            yield Fault(f"graph output {value.name!r}", "nothing computes it")


def _names(model: ir.Model) -> Iterator[Fault]:
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        values: dict[str, ir.Value] = {}
        nodes: dict[str, ir.Node] = {}
        for graph in (root, *subgraphs_of(root)):
            named = [*graph.inputs, *(o for node in graph for o in node.outputs)]
            if isinstance(graph, ir.Graph):
                named += graph.initializers.values()
            for value in named:
                if value.name and values.setdefault(value.name, value) is not value:
                    yield Fault(f"value {value.name!r}", "two values have this name")
            for node in graph:
                if node.name and nodes.setdefault(node.name, node) is not node:
                    yield Fault(
                        f"node {node.name!r}",
                        f"two nodes have this name ({nodes[node.name].op_type} and {node.op_type})",
                    )


def _opsets(model: ir.Model) -> Iterator[Fault]:
    newest = onnx.defs.onnx_opset_version()
    for graph, opsets in bodies(model):
        if opsets.get("", 0) > newest:
            yield Fault(
                f"opset_import {opsets['']}",
                f"the newest opset that onnx {onnx.__version__} knows is {newest}",
            )
        for node in graph:
            domain = domain_of(node)
            if node.op_identifier() in model.functions:
                continue
            if domain not in opsets:
                yield Fault(
                    node_label(node),
                    f"opset_import has no version of domain {domain or 'ai.onnx'!r}",
                    "Add the domain to opset_import",
                )
            elif (since := first_version(node.op_type, domain)) and since > opsets[domain]:
                yield Fault(
                    node_label(node),
                    f"the operator exists from opset {since} on, the model imports {opsets[domain]}",
                    f"Set opset_import to {since} or more",
                )


def _operators(model: ir.Model) -> Iterator[Fault]:
    for graph, opsets in bodies(model):
        for node in graph:
            domain = domain_of(node)
            if node.op_identifier() in model.functions:
                continue
            if first_version(node.op_type, domain) is None:
                yield Fault(
                    node_label(node),
                    f"ONNX has no operator {node.op_type} in domain {domain or 'ai.onnx'!r}, "
                    "and the model has no function for it",
                    "Give the model a function with its body",
                )
                continue
            schema = signature_of(node.op_type, domain, opsets.get(domain, 0))
            if schema is not None and schema.deprecated:
                yield Fault(
                    node_label(node),
                    f"opset {opsets[domain]} no longer has this operator (last in version "
                    f"{schema.since - 1})",
                    "Use its successor",
                )


def _arity(model: ir.Model) -> Iterator[Fault]:
    for graph, opsets in bodies(model):
        sound: set[tuple[str, str, int, int]] = set()  # forms without attributes that are in order
        for node in graph:
            form = (node.op_type, node.domain, len(node.inputs), len(node.outputs))
            if form in sound and not node.attributes and None not in node.inputs:
                continue  # no input is absent, and no attribute is required
            function = model.functions.get(node.op_identifier())
            if function is not None:
                if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(
                    function.outputs
                ):
                    yield Fault(
                        node_label(node),
                        f"{len(node.inputs)} inputs and {len(node.outputs)} outputs",
                        f"The function has {len(function.inputs)} and {len(function.outputs)}",
                    )
                continue
            domain = domain_of(node)
            schema = signature_of(node.op_type, domain, opsets.get(domain, 0))
            if schema is not None and not schema.deprecated:
                faults = [*_arity_of(node, schema)]
                yield from faults
                if not faults and not node.attributes:
                    sound.add(form)


def _arity_of(node: ir.Node, schema: Signature) -> Iterator[Fault]:
    for what, values, (low, high) in (
        ("inputs", node.inputs, schema.num_inputs),
        ("outputs", node.outputs, schema.num_outputs),
    ):
        if not low <= len(values) <= high:
            allowed = str(low) if low == high else f"{low} to {high}"
            yield Fault(node_label(node), f"{len(values)} {what}", f"The operator has {allowed}")
    for value, formal in zip(node.inputs, schema.inputs, strict=False):
        if value is None and formal.single:
            yield Fault(node_label(node), f"input {formal.name} is absent", "It is required")
    for name in schema.required:
        if name not in node.attributes:
            yield Fault(node_label(node), f"attribute {name} is absent", "It is required")
    for name in node.attributes:
        if name not in schema.attributes:
            known = ", ".join(sorted(schema.attributes)) or "none"
            yield Fault(node_label(node), f"attribute {name} is unknown", f"It has {known}")


RULES = (
    Rule("opset", "each domain is imported, in a version that has the operators used", _opsets),
    Rule("operators", "every operator is ONNX's or has a function body", _operators),
    Rule("order", "a node reads only what earlier nodes, inputs or weights give", _order),
    Rule("names", "no two values and no two nodes share a name", _names),
    Rule("arity", "inputs, outputs and attributes are those of the operator", _arity),
)
