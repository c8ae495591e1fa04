"""What a rule of the graph's spec is: a name, a sentence, and a search for faults."""

from collections.abc import Callable, Iterator
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
    """A rule that every graph of ours keeps; `check` yields what breaks it."""

    name: str
    text: str
    check: Callable[[ir.Model], Iterator[Fault]]


def bodies(model: ir.Model) -> Iterator[tuple[ir.Graph | ir.Function, dict[str, int]]]:
    """The main graph, its subgraphs and all functions, each with the opsets it imports."""
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        opsets = {_domain(d): v for d, v in root.opset_imports.items()}
        if root is model.graph:
            opsets = {_domain(d): v for d, v in model.opset_imports.items()} | opsets
        yield root, opsets
        for inner in root.subgraphs():
            yield inner, opsets


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
