"""Cut a graph at its mapped values: each becomes the small model that computes it from mapped values and weights.

mapped values -> Region(value; nodes, inputs, weights) -> ir.Model that runs alone
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Region:
    """What computes one value. nodes: in order. inputs: mapped values and graph inputs; weights: initializers."""

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    weights: tuple[ir.Value, ...]

    @property
    def name(self) -> str:
        return str(self.value.name)

    @property
    def node(self) -> ir.Node:
        """The node that gives the value."""
        return self.nodes[-1]

    def values(self) -> Iterator[ir.Value]:
        """Inputs, weights and everything computed."""
        yield from self.inputs
        yield from self.weights
        for node in self.nodes:
            yield from node.outputs


def cut_region(value: ir.Value, mapped: Collection[ir.Value]) -> Region:
    """The nodes between `value`, which a node gives, and the mapped values before it."""
    found: dict[ir.Node, None] = {}
    inputs: dict[ir.Value, None] = {}
    weights: dict[ir.Value, None] = {}
    last = value.producer()
    assert last is not None
    stack: list[tuple[ir.Node, bool]] = [(last, False)]
    while stack:  # depth first, a node after its inputs
        node, done = stack.pop()
        if done:
            found[node] = None
            continue
        if node in found:
            continue
        stack.append((node, True))
        for read in reads(node):
            producer = read.producer()
            if read.is_initializer() and not read.is_graph_input():
                weights[read] = None
            elif producer is None or read in mapped:
                inputs[read] = None
            elif producer not in found:
                stack.append((producer, False))
    return Region(value, tuple(found), tuple(inputs), tuple(weights))


def reads(node: ir.Node) -> Iterable[ir.Value]:
    """Every value of the graph around it that the node, or a graph inside it, reads."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from _captured(attribute.as_graph())


def _captured(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for read in reads(node):
            if read not in own:
                yield read
        own.update(node.outputs)
    yield from (value for value in graph.outputs if value not in own)


def region_model(region: Region, model: ir.Model, *, feed_weights: bool = False) -> ir.Model:
    """The region as a model of its own, with the functions it calls; `model` is left as it is.

    feed_weights: floating weights become inputs, so that they can be changed from run to run.
    """
    fed = floating_weights(region) if feed_weights else ()
    view = ir.GraphView(
        [*region.inputs, *fed],
        [region.value],
        nodes=region.nodes,
        initializers=[w for w in region.weights if w not in fed],
        opset_imports=model.graph.opset_imports,
        name="region",
    )
    graph = view.clone()
    functions = _called(graph, model)
    return ir.Model(
        graph, ir_version=model.ir_version, producer_name="blockforge", functions=functions
    )


def floating_weights(region: Region) -> tuple[ir.Value, ...]:
    """The weights that hold floating numbers of 16 bits or more."""
    wide = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    return tuple(
        w for w in region.weights if w.const_value is not None and w.const_value.dtype in wide
    )


def _called(graph: ir.Graph, model: ir.Model) -> list[ir.Function]:
    """Local functions that the graph needs, those that functions call included."""
    found: dict[tuple[str, str, str], ir.Function] = {}
    waiting: list[ir.Node] = list(graph.all_nodes())
    while waiting:
        function = model.functions.get(waiting.pop().op_identifier())
        if function is not None and function.identifier() not in found:
            found[function.identifier()] = function
            waiting += list(function.all_nodes())
    return [
        function.clone() if hasattr(function, "clone") else function for function in found.values()
    ]
