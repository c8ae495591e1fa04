"""The rules of the graph's spec, as data: what every graph keeps, and what merely looks wrong."""

from . import structure, suspicions, types, weights
from .rule import Fault, Rule, bodies, domain_of, node_label, operator_name

RULES: tuple[Rule, ...] = (*structure.RULES, *types.RULES, *weights.RULES)
SUSPICIONS: tuple[Rule, ...] = suspicions.RULES

__all__ = [
    "RULES",
    "SUSPICIONS",
    "Fault",
    "Rule",
    "bodies",
    "domain_of",
    "node_label",
    "operator_name",
]
