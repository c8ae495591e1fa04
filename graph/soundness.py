"""What speaks against a graph before anyone walks through it: circles of nodes, functions that call themselves or unfold
without end.

    ir.Model -> the reason and what would work, or None

Linear in nodes and their inputs (times the depth of branches and loops); nothing is unfolded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from .rules import graphs_of, node_label, nodes_of, subgraphs_of

MOST_UNFOLDED = (
    250_000  # nodes once every call is replaced by its body; an 80-layer decoder has 7,300
)
SHOWN = 4  # nodes of a circle that a message names

Body = ir.Graph | ir.Function


@dataclass(frozen=True, slots=True)
class Unsound:
    """The reason, and what would work."""

    found: str
    fix: str


def circle_in(model: ir.Model) -> Unsound | None:
    """The first circle of nodes, in the main graph, a branch, a loop or a function body; None without one."""
    roots: list[Body] = [model.graph, *model.functions.values()]
    for root in roots:
        for graph in (root, *subgraphs_of(root)):
            if circle := _circle(graph):
                names = ", ".join(map(node_label, circle[:SHOWN]))
                more = f" and {len(circle) - SHOWN} more" if len(circle) > SHOWN else ""
                return Unsound(f"{names}{more} stand in a circle", "Cut the circle")
    return None


def endless_functions_in(model: ir.Model) -> Unsound | None:
    """A function that calls itself, or calls that unfold to more than MOST_UNFOLDED nodes; None without either."""
    calls = {
        identifier: [n.op_identifier() for n in nodes_of(function)]
        for identifier, function in model.functions.items()
    }
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for identifier in calls:
        if recursive := _measure(identifier, calls, sizes):
            return Unsound(
                f"function {recursive[1]} calls itself", "Functions must not be recursive"
            )
    if not calls:
        return None
    total = sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())
    if total > MOST_UNFOLDED:
        return Unsound(
            f"{total} nodes once its function calls are replaced by their bodies",
            f"The most is {MOST_UNFOLDED}",
        )
    return None


def _measure(
    start: ir.OperatorIdentifier,
    calls: Mapping[ir.OperatorIdentifier, list[ir.OperatorIdentifier]],
    sizes: dict[ir.OperatorIdentifier, int],
) -> ir.OperatorIdentifier | None:
    """Fill in the unfolded sizes of `start` and what it calls; returns a function that calls itself."""
    stack, entered = [start], set()
    while stack:
        here = stack[-1]
        if here in sizes:
            stack.pop()
            continue
        inner = {called for called in calls[here] if called in calls and called not in sizes}
        if inner and here in entered:
            return here
        if inner:
            entered.add(here)
            stack += inner
            continue
        sizes[here] = sum(sizes.get(called, 1) for called in calls[here])
    return None


def _circle(graph: Body) -> list[ir.Node]:
    """Nodes that wait for each other in turn, in order; empty where the graph can be sorted."""
    if _is_sorted(graph):
        return []
    places = {node: place for place, node in enumerate(graph)}
    waits: list[set[int]] = [set() for _ in places]
    readers: list[list[int]] = [[] for _ in places]
    for place, sources in _sources(graph, places):
        for source in sources:
            if source not in waits[place]:
                waits[place].add(source)
                readers[source].append(place)
    ready = [place for place, sources in enumerate(waits) if not sources]
    while ready:
        done = ready.pop()
        for reader in readers[done]:
            waits[reader].discard(done)
            if not waits[reader]:
                ready.append(reader)
    nodes = list(places)
    path: list[int] = []
    seen: dict[int, int] = {}
    here = next((place for place, sources in enumerate(waits) if sources), None)
    while here is not None and here not in seen:
        seen[here] = len(path)
        path.append(here)
        here = next(iter(waits[here]))
    return [] if here is None else [nodes[place] for place in reversed(path[seen[here] :])]


def _is_sorted(graph: Body) -> bool:
    """Whether no node reads what it or a later node of `graph` computes."""
    later = set(graph)
    for node in graph:
        values = _reads(node) if node.attributes else node.inputs
        if any(v is not None and v.producer() in later for v in values):
            return False
        later.discard(node)
    return True


def _sources(graph: Body, places: Mapping[ir.Node, int]) -> Iterator[tuple[int, list[int]]]:
    """For each node of `graph`, the places of those whose values it or a node inside it reads."""
    for place, node in enumerate(graph):
        found = []
        for value in _reads(node):
            producer = value.producer()
            source = places.get(producer) if producer is not None else None
            if source is not None:
                found.append(source)
        yield place, found


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    for graph in graphs_of(node):
        for inner in graph.all_nodes():
            yield from (value for value in inner.inputs if value is not None)
        for body in (graph, *subgraphs_of(graph)):
            yield from body.outputs
