"""Rules about element types: every value declares one, and it is the one that its operator gives."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import UsageError
from ..dtype_rules import Operation, Types, output_types
from ..type_names import DataType, type_name
from .rule import Fault, Rule, domain_of, node_label, subgraphs_of


@dataclass(frozen=True, slots=True)
class OneType:
    """Inputs that must share a type although ONNX's schema gives them separate type variables."""

    operator: str
    inputs: tuple[int, int]
    reason: str


ONE_TYPE = (
    OneType(
        "RMSNormalization", (0, 1), "onnx.checker, ONNX Runtime and TensorRT read them as one type"
    ),
    OneType("Attention", (0, 1), "TensorRT's attention has one type for query and key"),
    OneType("Attention", (0, 2), "TensorRT's attention has one type for query and value"),
)
_ONE_TYPE = frozenset(row.operator for row in ONE_TYPE)


def _typed(model: ir.Model) -> Iterator[Fault]:
    for value in model.graph.inputs:
        if value.type is None or (isinstance(value.type, ir.TensorType) and value.shape is None):
            yield Fault(f"graph input {value.name!r}", "it has no declared type and rank")
    for graph in (model.graph, *subgraphs_of(model.graph)):
        for node in graph:
            for value in node.outputs:
                if value.name and value.type is None:
                    yield Fault(
                        f"value {value.name!r}",
                        f"{node_label(node)} gives it no declared type",
                        "Run shape inference, or set its type where the node is made",
                    )


def _agree(model: ir.Model) -> Iterator[Fault]:
    opsets = dict(model.opset_imports)
    for graph in (model.graph, *subgraphs_of(model.graph)):
        types = {v: v.dtype for v in graph.inputs}
        yield from _agree_in(model, graph, opsets, types, "")


def _agree_in(
    model: ir.Model,
    graph: ir.Graph | ir.Function,
    opsets: dict[str, int],
    types: dict[ir.Value, DataType | None],
    caller: str,
) -> Iterator[Fault]:
    """Follow the types through `graph`; in a function body they come from the caller's inputs."""
    plain: dict[tuple[str, str, Types, int], Types] = {}  # results for nodes without attributes
    for node in graph:
        inputs = tuple(None if v is None else types.get(v) or _declared(v) for v in node.inputs)
        function = model.functions.get(node.op_identifier()) if model.functions else None
        if function is None:
            key = (node.op_type, node.domain, inputs, len(node.outputs))
            given: Types | None = None if node.attributes else plain.get(key)
            if given is None:
                try:
                    given = output_types(_operation(node, opsets), inputs, strict=True)
                    if not node.attributes:
                        plain[key] = given
                except UsageError as error:
                    where = f"{caller}{node_label(node)}"
                    yield Fault(where, f"{error.asked} has {error.found}", error.fix)
                    given = (None,) * len(node.outputs)
        else:
            inner = dict(zip(function.inputs, inputs, strict=False))
            scope = {**opsets, **function.opset_imports}
            where = f"{caller}{node_label(node)}"
            yield from _agree_in(model, function, scope, inner, f"{where}, body: ")
            given = tuple(inner.get(v) for v in function.outputs)
        for value, dtype in zip(node.outputs, given, strict=False):
            declared = _declared(value)
            if dtype and declared and dtype != declared:
                yield Fault(
                    f"value {value.name!r} of {caller}{node_label(node)}",
                    f"declared {type_name(declared)}, but the operator gives {type_name(dtype)}",
                    "Correct the declared type or insert a Cast",
                )
            types[value] = declared or dtype


def _declared(value: ir.Value) -> DataType | None:
    if value.type is not None:
        return value.dtype if isinstance(value.type, ir.TensorType) else None
    return value.const_value.dtype if value.const_value is not None else None


def _operation(node: ir.Node, opsets: dict[str, int]) -> Operation:
    domain = domain_of(node)
    version = opsets.get(domain) or opsets.get("ai.onnx", 0)
    attributes = {k: a for k, a in node.attributes.items() if not a.is_ref()}
    return Operation(node.op_type, domain, version, attributes, len(node.outputs))


def _one_type(model: ir.Model) -> Iterator[Fault]:
    for graph in (model.graph, *subgraphs_of(model.graph)):
        for node in graph:
            if node.op_type not in _ONE_TYPE or domain_of(node):
                continue
            inputs: Types = tuple(None if v is None else _declared(v) for v in node.inputs)
            for row in ONE_TYPE:
                if node.op_type != row.operator or len(inputs) <= row.inputs[1]:
                    continue
                first, second = (inputs[i] for i in row.inputs)
                if first and second and first != second:
                    yield Fault(
                        node_label(node),
                        f"input {row.inputs[0]} is {type_name(first)}, input {row.inputs[1]} "
                        f"is {type_name(second)}",
                        f"Cast one of them: {row.reason}",
                    )


RULES = (
    Rule("typed", "every value declares its element type", _typed),
    Rule("agree", "declared types are those that the operators give", _agree),
    Rule("one type", "inputs that engines read as one type have one type", _one_type),
)
