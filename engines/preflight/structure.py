"""The spec of a typed graph (graph/rules) as preflight sees it: which breaches a target refuses, which it overlooks."""

from collections.abc import Iterator

import onnx_ir as ir

from ...graph.dtype_rules import signature_of
from ...graph.rules import RULES, Fault, bodies, domain_of, node_label
from .finding import Finding, Severity

RULE = {rule.name: rule for rule in RULES}
REFUSES = "The parser refuses the graph"
LARGEST_VERSION = 1_000_000  # of an opset: ONNX's own are below 100, and its look-up takes 32 bits
BUILDS = "TensorRT builds it all the same; other tools refuse it"


def check_structure(model: ir.Model) -> list[Finding]:
    """What is wrong with order, names, numbers of inputs and element types; sorts the nodes of `model` where they are not."""
    found = [*_versions(model)] or [*_order(model), *_names(model), *_attributes(model)]
    if not any(finding.fails for finding in found):
        found += _arity(model)
    if any(finding.fails for finding in found):
        return found  # the types of a graph that does not hold together mean nothing
    return [*found, *_types(model), *_opsets(model)]


def _finding(rule: str, fault: Fault, severity: Severity, happens: str, fix: str = "") -> Finding:
    return Finding(
        f"graph.{rule}", fault.where, severity, fault.found, happens, fault.fix or fix or RULE[rule].text
    )  # fmt: skip


def _order(model: ir.Model) -> Iterator[Finding]:
    """TensorRT sorts a graph itself; a circle or a value from nowhere it refuses."""
    later: list[Fault] = []
    for fault in RULE["order"].check(model):
        if "later node" in fault.found:
            later.append(fault)
        else:
            yield _finding("order", fault, "refused", REFUSES, "Compute it, or make it an input")
    if not later:
        return
    try:
        model.graph.sort()
    except ValueError:
        circle = Fault(later[0].where, "it stands in a circle of nodes", "Cut the circle")
        yield _finding("order", circle, "refused", REFUSES)
    else:
        yield _finding(
            "order", later[0], "note", "TensorRT sorts the nodes; ONNX wants them sorted"
        )


def _names(model: ir.Model) -> Iterator[Finding]:
    for fault in RULE["names"].check(model):
        if fault.where.startswith("value"):
            yield _finding("names", fault, "refused", REFUSES, "Rename one of them")
        else:
            yield _finding(
                "names", fault, "note", "It builds; planned kernels cannot be traced to one of them",
                "Rename one of them",
            )  # fmt: skip


def _versions(model: ir.Model) -> Iterator[Finding]:
    for _, opsets in bodies(model):
        for domain, version in opsets.items():
            if not 0 < version <= LARGEST_VERSION:
                fault = Fault(f"opset_import {domain or 'ai.onnx'!r}", f"version {version}")
                yield _finding("opset", fault, "refused", REFUSES)


def _attributes(model: ir.Model) -> Iterator[Finding]:
    """An attribute of another kind than its operator's is read by nobody."""
    for graph, opsets in bodies(model):
        for node in graph:
            if not node.attributes:
                continue
            domain = domain_of(node)
            schema = signature_of(node.op_type, domain, opsets.get(domain, 0))
            for name, attribute in node.attributes.items():
                expected = schema.attributes.get(name) if schema is not None else None
                if expected is not None and not attribute.is_ref() and attribute.type != expected:
                    fault = Fault(node_label(node), f"attribute {name} is a {attribute.type.name}")
                    yield _finding("arity", fault, "refused", REFUSES, f"It is a {expected.name}")


def _arity(model: ir.Model) -> Iterator[Finding]:
    for fault in RULE["arity"].check(model):
        extra = fault.found.startswith("attribute") and fault.found.endswith("is unknown")
        yield _finding("arity", fault, "note" if extra else "refused", BUILDS if extra else REFUSES)


def _types(model: ir.Model) -> Iterator[Finding]:
    for fault in RULE["agree"].check(model):
        if fault.where.startswith("value"):
            yield _finding(
                "agree", fault, "note", "TensorRT ignores declared types of inner values"
            )
        else:
            yield _finding("agree", fault, "refused", REFUSES)
    for fault in RULE["one type"].check(model):
        attention = "(Attention)" in fault.where
        yield _finding(
            "one type", fault, "refused" if attention else "note", REFUSES if attention else BUILDS
        )  # fmt: skip


def _opsets(model: ir.Model) -> Iterator[Finding]:
    for fault in RULE["opset"].check(model):
        yield _finding("opset", fault, "note", BUILDS)
