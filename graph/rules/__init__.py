"""The rules of the graph's spec, as data: what every graph keeps, and what merely looks wrong."""

from . import structure, suspicions, types, weights
from .rule import (
    Fault,
    Rule,
    bodies,
    domain_of,
    graphs_of,
    node_label,
    nodes_of,
    operator_name,
    subgraphs_kept,
    subgraphs_of,
)

RULES: tuple[Rule, ...] = (*structure.RULES, *types.RULES, *weights.RULES)
SUSPICIONS: tuple[Rule, ...] = suspicions.RULES

__all__ = [
    "RULES",
    "SUSPICIONS",
    "Fault",
    "Rule",
    "bodies",
    "domain_of",
    "graphs_of",
    "node_label",
    "nodes_of",
    "operator_name",
    "subgraphs_kept",
    "subgraphs_of",
]
