"""Raise a model's opset, and only when every operator in it means the same at the higher one.

Compared from the schemas: inputs only added and optional, attributes kept with their defaults. What fails that is
rewritten where the change is known to be form alone (axes of a reduction, the count of a Split), refused otherwise.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

REDEFINED = {
    "GroupNormalization": 21,
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "Upsample": 99,
    "GridSample": 20,
}
SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single


def schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """The standard operator's schema at an opset, None where it has none."""
    try:
        return onnx.defs.get_schema(op_type, version)
    except onnx.defs.SchemaError:
        return None


def required_opset(model: ir.Model) -> int:
    """The lowest opset that has every standard operator of the model as it is used: more than the file says when it lies."""
    declared = model.opset_imports.get("", 1)
    needed = declared
    for node in _standard_nodes(model):
        if _accepts(schema(node.op_type, needed), node):
            continue
        versions = [s.since_version for s in _history(node.op_type) if _accepts(s, node)]
        later = [v for v in versions if v > needed]
        needed = min(later, default=needed)
    return needed


def _accepts(found: onnx.defs.OpSchema | None, node: ir.Node) -> bool:
    """Whether an operator's schema has the node's attributes and inputs."""
    if found is None:
        return False
    named = all(name in found.attributes for name in node.attributes)
    return named and found.min_input <= len(node.inputs) <= found.max_input


def _history(op_type: str) -> Iterator[onnx.defs.OpSchema]:
    version = onnx.defs.onnx_opset_version()
    while version > 0 and (found := schema(op_type, version)) is not None:
        yield found
        version = found.since_version - 1


def obstacle(model: ir.Model, target: int) -> str | None:
    """Why the model cannot move to opset `target`; None when it can."""
    current = model.opset_imports.get("", 1)
    for node in _standard_nodes(model):
        old, new = schema(node.op_type, current), schema(node.op_type, target)
        if old is None:
            continue
        if new is None or new.deprecated:
            return f"{node.op_type} ({node.name}) is not in opset {target}"
        reason = _difference(old, new)
        if reason and not _convertible(node, old.since_version, new.since_version):
            return f"{node.op_type} ({node.name}) changes between opset {current} and {target}: {reason}"
    return None


def _difference(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> str:
    if old.since_version == new.since_version:
        return ""
    if old.since_version < REDEFINED.get(old.name, 0) <= new.since_version:
        return "its meaning"
    if len(new.inputs) < len(old.inputs):
        return "its inputs"
    for before, after in zip(old.inputs, new.inputs, strict=False):
        if before.option != after.option and before.option != SINGLE:
            return f"input {before.name}"
    if any(i.option == SINGLE for i in new.inputs[len(old.inputs) :]):
        return "a new input"
    for name, attribute in old.attributes.items():
        if name not in new.attributes:
            return f"attribute {name}"
        if attribute.default_value != new.attributes[name].default_value:
            return f"the default of {name}"
    added = [n for n, a in new.attributes.items() if a.required and n not in old.attributes]
    return f"attribute {added[0]}" if added else ""


def _convertible(node: ir.Node, old: int, new: int) -> bool:
    reduction = node.op_type.startswith("Reduce") and new >= 13
    return reduction or (node.op_type in ("Squeeze", "Unsqueeze") and new >= 13)


def raise_opset(model: ir.Model, target: int) -> None:
    """Move the model to opset `target`, for which `obstacle` found nothing."""
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        for node in list(graph):
            if node.domain == "":
                _convert(graph, node, target)
    model.opset_imports[""] = target
    for function in model.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = target
    model.ir_version = max(model.ir_version or 0, 8, _ir_version(target))


def _ir_version(opset: int) -> int:
    return 8 if opset < 19 else 9 if opset < 21 else 10


def _convert(graph: ir.Graph, node: ir.Node, target: int) -> None:
    op = node.op_type
    axes = node.attributes.get("axes")
    by_input = schema(op, target)
    if (
        axes is not None
        and by_input is not None
        and "axes" not in by_input.attributes
        and len(node.inputs) == 1
    ):
        producer = ir.node(
            "Constant",
            [],
            attributes={"value": ir.tensor(np.array(axes.as_ints(), dtype=np.int64))},
        )
        producer.outputs[0].name = f"{node.outputs[0].name}_axes"
        graph.insert_before(node, producer)
        node.resize_inputs(2)
        node.replace_input_with(1, producer.outputs[0])
        node.attributes.pop("axes")
    if (
        op == "Split"
        and target >= 18
        and (len(node.inputs) < 2 or node.inputs[1] is None)
        and "num_outputs" not in node.attributes
    ):
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


def _standard_nodes(model: ir.Model) -> Iterator[ir.Node]:
    for graph in model.graphs():
        yield from (n for n in graph if n.domain == "")
    for function in model.functions.values():
        yield from (n for n in function if n.domain == "")


def same_operators(function: ir.Function, opset: int) -> bool:
    """Whether every standard operator of `function` means the same at `opset`."""
    written = function.opset_imports.get("", opset)
    for node in function:
        if node.domain == "":
            here, there = schema(node.op_type, written), schema(node.op_type, opset)
            if (
                here is None
                or there is None
                or _difference(min(here, there, key=_since), max(here, there, key=_since))
            ):
                return False
    return True


def _since(found: onnx.defs.OpSchema) -> int:
    return int(found.since_version)
