"""What a rule of the graph's spec is: a name, a sentence, and a search for faults."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Fault:
    """One breach: where (a node or value, named), what was found, and what would work."""

    where: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that every graph of ours keeps; `check` yields what breaks it. operators: those it is about, where it is about some."""

    name: str
    text: str
    check: Callable[[ir.Model], Iterator[Fault]]
    operators: tuple[str, ...] = ()


def bodies(model: ir.Model) -> Iterator[tuple[ir.Graph | ir.Function, dict[str, int]]]:
    """The main graph, its subgraphs and all functions, each with the opsets it imports."""
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        opsets = {_domain(d): v for d, v in root.opset_imports.items()}
        if root is model.graph:
            opsets = {_domain(d): v for d, v in model.opset_imports.items()} | opsets
        yield root, opsets
        for inner in subgraphs_of(root):
            yield inner, opsets


_KEPT: ContextVar[tuple[ir.Graph, list[ir.Graph]] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def subgraphs_kept(root: ir.Graph) -> Iterator[None]:
    """Inside, subgraphs_of(root) is found once: nothing may add a branch or a body to `root`, or take one away."""
    token = _KEPT.set((root, subgraphs_of(root)))
    try:
        yield
    finally:
        _KEPT.reset(token)


def subgraphs_of(root: ir.Graph | ir.Function) -> list[ir.Graph]:
    """Every branch and body inside `root`, at any depth: root.subgraphs() at a third of its time."""
    kept = _KEPT.get()
    if kept is not None and kept[0] is root:
        return kept[1]
    found: list[ir.Graph] = []
    stack: list[ir.Graph | ir.Function] = [root]
    while stack:
        for node in stack.pop():
            inner = graphs_of(node) if node.attributes else ()
            found += inner
            stack += inner
    return found


def nodes_of(root: ir.Graph | ir.Function) -> list[ir.Node]:
    """Every node of `root` and of the graphs inside it: list(root.all_nodes()), faster where there are none inside."""
    return list(root.all_nodes()) if subgraphs_of(root) else list(root)


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    """The branches or the body of a node."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def domain_of(node: ir.Node) -> str:
    """The node's domain, "" for ONNX's own."""
    return _domain(node.domain)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def operator_name(node: ir.Node) -> str:
    """`Add`, or `domain::Name` outside the standard domain."""
    domain = domain_of(node)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def node_label(node: ir.Node) -> str:
    """How messages name a node: its name and operator, or what it computes where it has no name."""
    if node.name:
        return f"node {node.name!r} ({operator_name(node)})"
    first = next((o.name for o in node.outputs if o.name), "nothing")
    return f"the {operator_name(node)} node that computes {first!r}"
