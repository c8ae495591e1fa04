"""Put the matches into the graph: new nodes after the old roots, names kept, dead nodes and weights removed."""

import json
from collections.abc import Iterable

import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.symbols import Dims
from .match import Done, Match, Tape, node_name, shape_from
from .outline import Functions
from .report import Fused


def apply(facts: Facts, functions: Functions, matches: Iterable[Match]) -> list[Fused]:
    """Rewrite every match of one graph; returns what each became."""
    fused, touched, done = [], dict[ir.Node, None](), Done()
    for match in sorted(matches, key=lambda m: facts.order[m.root]):
        fused.append(_apply_one(facts, functions, match, done))
        touched.update(dict.fromkeys(match.region))
    _reroute_shapes(facts, touched)
    _remove_dead(facts.graph, touched)
    facts.graph.sort()
    return fused


def _apply_one(facts: Facts, functions: Functions, match: Match, done: Done) -> Fused:
    tape = Tape(facts, done)
    opset = functions.model.opset_imports.get("", 1)
    standard = match.standard
    if standard is not None and standard.since <= opset and opset <= (standard.until or opset):
        results, operator = [standard.build(tape)], standard.op_type
        nodes = tape.nodes
    else:
        results = functions.call(facts, match, [done.now(v) for v in match.inputs])
        call = results[0].producer()
        assert call is not None
        nodes, operator = [call], f"{call.domain}::{call.op_type}"
    root = match.root
    replaced = tuple(
        node_name(n)
        for n in sorted(match.region, key=facts.order.__getitem__)
        if n.op_type != "Constant"
    )
    _name(facts.graph, tape, nodes, match, replaced)
    facts.graph.insert_after(root, nodes)
    for old, new in zip(match.outputs, results, strict=True):
        dtype = facts.dtype(old)
        new.shape = old.shape or shape_from(facts.dims(old)) or new.shape
        new.type = old.type or (ir.TensorType(dtype) if dtype is not None else new.type)
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        done.replaced[old] = new
        old.name = f"{name}_replaced"
        new.name = name
        new.metadata_props.update(old.metadata_props)
    return Fused(match.pattern, operator, node_name(nodes[-1]), replaced, tuple(match.notes))


def _name(
    graph: ir.Graph, tape: Tape, nodes: list[ir.Node], match: Match, replaced: tuple[str, ...]
) -> None:
    base = match.outputs[0].name
    for value in tape.initializers:
        value.name = f"{base}_fused_{len(graph.initializers)}"
        while value.name in graph.initializers:
            value.name += "_"
        graph.register_initializer(value)
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        node.name = f"{node_name(match.root)}_{node.op_type}" + ("" if last else f"_{index}")
        for value in node.outputs:
            if value.name is None:
                value.name = f"{base}_{node.op_type}_{index}"
        node.metadata_props.update(match.root.metadata_props)
        node.metadata_props["blockforge.replaced"] = ", ".join(replaced)
        if match.details:
            node.metadata_props["blockforge.details"] = json.dumps(match.details, default=str)


def _reroute_shapes(facts: Facts, touched: dict[ir.Node, None]) -> None:
    """Read sizes from a value that stays: a Shape alone must not keep what was replaced alive."""
    places: dict[Dims, ir.Value] = {}
    for value in (
        *facts.graph.inputs,
        *(v for n in facts.nodes if n not in touched for v in n.outputs),
    ):
        dims = facts.dims(value)
        if dims:
            places.setdefault(dims, value)
    for value in [v for n in touched for v in n.outputs]:
        dims = facts.dims(value)
        other = places.get(dims) if dims else None
        for node in facts.users(value) if other is not None and value not in facts.outputs else ():
            made = other.producer() if other is not None else None
            earlier = made is None or facts.order[made] < facts.order.get(node, -1)
            if node.op_type == "Shape" and not node.domain and node not in touched and earlier:
                node.replace_input_with(0, other)


def _remove_dead(graph: ir.Graph, touched: dict[ir.Node, None]) -> None:
    """Remove nodes that nothing reads any more, from those we touched upward."""
    queue, weights = list(touched), dict[ir.Value, None]()
    outputs = set(graph.outputs)
    while queue:
        node = queue.pop()
        if node.graph is not graph or any(v in outputs or v.uses() for v in node.outputs):
            continue
        inputs = [v for v in node.inputs if v is not None]
        graph.remove(node, safe=True)
        for value in inputs:
            producer = value.producer()
            if producer is not None:
                queue.append(producer)
            elif value.is_initializer():
                weights[value] = None
    for value in weights:
        if (
            not value.uses()
            and value not in outputs
            and not value.is_graph_input()
            and value.name in graph.initializers
        ):
            graph.initializers.pop(str(value.name))
