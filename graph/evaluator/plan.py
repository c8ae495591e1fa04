"""Turn a graph into a list of steps once, so that a run only executes: graph -> Plan.

Each step knows its kernel (or the plan of its function's body), its attributes with references resolved, its
inner graphs, and which values nothing reads after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ...core.errors import UsageError
from ..dtype_rules import Operation, Types, output_types
from ..operators import OPERATORS, Access, Operator

FunctionId = tuple[str, str, str]


@dataclass(slots=True)
class Step:
    """One node, ready to run. function is set instead of operator where a local function defines the node."""

    label: str  # how messages name the node
    operation: Operation
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    wanted: tuple[bool, ...]
    operator: Operator | None
    function: "Plan | None"
    bodies: Mapping[str, "Plan"]
    release: tuple[ir.Value, ...] = ()
    _types: dict[Types, Types] = field(default_factory=dict)

    def output_types(self, inputs: Types) -> Types:
        """The outputs' types for these input types, remembered.

        Where the schema leaves one open, or there is none, it is the declared type, or else the first input's.
        """
        known = self._types.get(inputs)
        if known is None:
            first = inputs[0] if inputs else None
            given = output_types(self.operation, inputs)
            open_ = self.operator is not None and self.operator.access is Access.MATH
            known = tuple(
                dtype or (value.dtype or first if open_ else None)
                for dtype, value in zip(given, self.outputs, strict=True)
            )
            self._types[inputs] = known
        return known


@dataclass(slots=True)
class Plan:
    """A graph, subgraph or function body. prefix goes before the names of its values in reports."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    steps: list[Step]
    prefix: str

    def value_names(self) -> Iterable[str]:
        """The names of all values that steps compute, inner ones included."""
        for step in self.steps:
            yield from (self.prefix + output.name for output in step.outputs if output.name)
            for body in (*step.bodies.values(), *([step.function] if step.function else [])):
                yield from body.value_names()


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the nodes of one graph or function body share."""

    functions: Mapping[FunctionId, ir.Function]
    opsets: Mapping[str, int]
    bindings: Mapping[str, ir.Attr]  # attributes of the function being called
    prefix: str
    calling: tuple[FunctionId, ...] = ()


def plan_model(model: ir.Model) -> Plan:
    """The plan of the model's main graph.

    Raises UsageError naming operator, domain and node where the evaluator knows no such operator.
    """
    return _plan_graph(model.graph, _Scope(model.functions, model.opset_imports, {}, ""))


def _plan_graph(graph: ir.Graph | ir.Function, scope: _Scope) -> Plan:
    steps = [_plan_node(node, index, scope) for index, node in enumerate(graph)]
    plan = Plan(tuple(graph.inputs), tuple(graph.outputs), steps, scope.prefix)
    _mark_releases(plan)
    return plan


def _plan_node(node: ir.Node, index: int, scope: _Scope) -> Step:
    label = scope.prefix + (node.name or f"{node.op_type}_{index}")
    attributes = _resolve(node.attributes, scope.bindings)
    identifier = node.op_identifier()
    function = scope.functions.get(identifier)
    domain = "" if node.domain == "ai.onnx" else node.domain
    operator = None if function else OPERATORS.get((domain, node.op_type))
    if operator is None and function is None:
        raise UsageError(
            f"operator {node.op_type} of domain {domain or 'ai.onnx'!r} (node {label!r})",
            found="the evaluator does not know it, and the model has no function for it",
            fix="Give the model a function body for it, or add a kernel in graph/operators",
        )
    return Step(
        label=label,
        operation=Operation(
            node.op_type, domain, _version(scope, domain, label), attributes, len(node.outputs)
        ),
        inputs=tuple(node.inputs),
        outputs=tuple(node.outputs),
        wanted=tuple(bool(o.uses()) or o.is_graph_output() for o in node.outputs),
        operator=operator,
        function=None if function is None else _plan_function(function, attributes, label, scope),
        bodies={
            name: _plan_graph(attribute.as_graph(), scope)
            for name, attribute in attributes.items()
            if attribute.type == ir.AttributeType.GRAPH
        },
    )


def _plan_function(
    function: ir.Function, attributes: Mapping[str, ir.Attr], label: str, scope: _Scope
) -> Plan:
    identifier = function.identifier()
    if identifier in scope.calling:
        raise UsageError(f"function {function.name} (node {label!r})", found="it calls itself")
    defaults = {
        name: attribute
        for name, attribute in function.attributes.items()
        if attribute.value is not None
    }
    inner = _Scope(
        functions=scope.functions,
        opsets={**scope.opsets, **function.opset_imports},
        bindings={**defaults, **attributes},
        prefix=f"{label}/",
        calling=(*scope.calling, identifier),
    )
    return _plan_graph(function, inner)


def _resolve(
    attributes: Mapping[str, ir.Attr], bindings: Mapping[str, ir.Attr]
) -> dict[str, ir.Attr]:
    """Attributes with references to the enclosing function's replaced; an unset one is dropped."""
    resolved = {}
    for name, attribute in attributes.items():
        if not attribute.is_ref():
            resolved[name] = attribute
        elif (outer := str(attribute.ref_attr_name)) in bindings:
            resolved[name] = bindings[outer]
    return resolved


def _version(scope: _Scope, domain: str, label: str) -> int:
    version = scope.opsets.get(domain) or scope.opsets.get("ai.onnx" if domain == "" else domain)
    if version is None:
        raise UsageError(
            f"node {label!r}",
            found=f"the model imports no version of domain {domain or 'ai.onnx'!r}",
            fix="Add it to opset_import",
        )
    return version


def _mark_releases(plan: Plan) -> None:
    """Tell each step which values of this graph nothing reads after it."""
    mine = {value for step in plan.steps for value in step.outputs} | set(plan.inputs)
    last: dict[ir.Value, int] = {}
    for index, step in enumerate(plan.steps):
        for value in (*step.outputs, *_reads(step)):
            if value in mine:
                last[value] = index
    done: dict[int, list[ir.Value]] = {}
    for value, index in last.items():
        if value not in plan.outputs:
            done.setdefault(index, []).append(value)
    for index, values in done.items():
        plan.steps[index].release = tuple(values)


def _reads(step: Step) -> Iterable[ir.Value]:
    """Every value that the step or one of its inner graphs reads."""
    yield from (value for value in step.inputs if value is not None)
    for body in step.bodies.values():
        yield from body.outputs
        for inner in body.steps:
            yield from _reads(inner)
