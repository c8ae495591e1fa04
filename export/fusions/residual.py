"""Join the residual addition to the norm that reads it, for runners that have such an operator.

total = x + skip; y = norm(total)  ->  y, total = AddRMSNorm(x, skip, weight)                   ops blockforge
                                       y, _, _, total = SkipSimplifiedLayerNormalization(...)   ops ort
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...core.domain import DOMAIN, DOMAIN_VERSION
from ...plugins import registry
from ..algebra.facts import Facts
from ..opset import same_operators
from .match import node_name
from .report import Fused, FusionReport, Runner

PLUGINS = {"RMSNormalization": "AddRMSNorm", "LayerNormalization": "AddLayerNorm"}
CONTRIB = {
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
    "LayerNormalization": "SkipLayerNormalization",
}
PATTERN = {"RMSNormalization": "rms", "LayerNormalization": "ln"}
TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class _Pair:
    addition: ir.Node
    norm: ir.Node
    vectors: tuple[ir.Value, ...]  # weight, bias
    dtype: ir.DataType


def join_residuals(model: ir.Model, runner: Runner, report: FusionReport) -> None:
    """Rewrite every residual addition whose sum a norm reads; `report` gets one line per pair."""
    for graph in model.graphs():
        facts = Facts(graph)
        for pair in list(_pairs(facts, bias_free=runner == "ort")):
            if (
                runner == "ort"
                and pair.dtype != ir.DataType.BFLOAT16
                and len(facts.dims(pair.norm.inputs[0]) or ()) == 3
            ):
                report.fused.append(_contrib(model, facts, pair))
            elif runner == "blockforge" and _declare(model, PLUGINS[pair.norm.op_type], report):
                report.fused.append(_plugin(model, facts, pair))
        graph.sort()


def _pairs(facts: Facts, bias_free: bool) -> Iterator[_Pair]:
    for node in facts.nodes:
        if (
            node.domain
            or node.op_type not in PLUGINS
            or node.attributes.get_int("stash_type", 1) != 1
        ):
            continue
        total, dims = _below_same(facts, node.inputs[0]), facts.dims(node.inputs[0])
        addition = total.producer() if total is not None else None
        if (
            addition is None
            or dims is None
            or addition.op_type != "Add"
            or addition.domain
            or addition.graph is not node.graph
        ):
            continue
        if node.attributes.get_int("axis", -1) not in (-1, len(dims) - 1) or any(
            v.uses() for v in node.outputs[1:]
        ):
            continue
        x, skip = addition.inputs[0], addition.inputs[1]
        vectors = tuple(v for v in node.inputs[1:3] if v is not None)
        dtype = facts.dtype(total)
        fits = facts.dims(x) == facts.dims(skip) == dims and all(
            facts.dims(v) == dims[-1:] for v in vectors
        )
        same = dtype in TYPES and all(facts.dtype(v) == dtype for v in (x, skip, *vectors))
        if fits and same and dtype is not None and not (facts.constant(x) or facts.constant(skip)):
            yield _Pair(addition, node, vectors, dtype)


def _below_same(facts: Facts, value: ir.Value | None) -> ir.Value | None:
    """The value below casts to its own type and identities."""
    while (
        value is not None
        and (node := value.producer()) is not None
        and node.op_type in ("Cast", "Identity")
    ):
        if node.domain or facts.dtype(node.inputs[0]) != facts.dtype(value):
            break
        value = node.inputs[0]
    return value


def _declare(model: ir.Model, name: str, report: FusionReport) -> bool:
    """Add the operator's body to the model, in the model's opset; False where it needs operators of a later one."""
    if (DOMAIN, name, "") in model.functions:
        return True
    body = ir.serde.deserialize_function(registry.plugin_named(name).body)
    opset = model.opset_imports[""]
    if not same_operators(body, opset):
        note = f"{name} needs operators that opset {opset} does not have"
        if note not in report.notes:
            report.notes.append(note)
        return False
    body.opset_imports[""] = opset
    model.functions[body.identifier()] = body
    model.opset_imports[DOMAIN] = DOMAIN_VERSION
    model.ir_version = max(model.ir_version or 0, 8)
    return True


def _epsilon(node: ir.Node) -> ir.Attr:
    return ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))


def _plugin(model: ir.Model, facts: Facts, pair: _Pair) -> Fused:
    vectors = list(pair.vectors)
    if pair.norm.op_type == "LayerNormalization" and len(vectors) == 1:
        size = vectors[0].shape
        zeros = ir.tensor(
            np.zeros(
                [d for d in facts.dims(vectors[0]) or () if isinstance(d, int)],
                dtype=pair.dtype.numpy(),
            ),
            dtype=pair.dtype,
        )
        bias = ir.Value(
            name=f"{pair.norm.outputs[0].name}_no_bias",
            type=ir.TensorType(pair.dtype),
            shape=size,
            const_value=zeros,
        )
        pair.norm.graph.register_initializer(bias)  # type: ignore[union-attr]
        vectors.append(bias)
    node = ir.Node(
        DOMAIN,
        PLUGINS[pair.norm.op_type],
        [*pair.addition.inputs, *vectors],
        [_epsilon(pair.norm)],
        num_outputs=2,
    )
    return _replace(facts, pair, node, node.outputs[0], node.outputs[1])


def _contrib(model: ir.Model, facts: Facts, pair: _Pair) -> Fused:
    node = ir.Node(
        "com.microsoft",
        CONTRIB[pair.norm.op_type],
        [*pair.addition.inputs, *pair.vectors],
        [_epsilon(pair.norm)],
        num_outputs=4,
    )
    node.outputs[1].name = node.outputs[2].name = ""
    model.opset_imports["com.microsoft"] = 1
    return _replace(facts, pair, node, node.outputs[0], node.outputs[3])


def _replace(facts: Facts, pair: _Pair, node: ir.Node, y: ir.Value, total: ir.Value) -> Fused:
    graph = pair.norm.graph
    assert graph is not None
    replaced = (node_name(pair.addition), node_name(pair.norm))
    node.name = f"{replaced[1]}_{node.op_type}"
    node.metadata_props.update(pair.norm.metadata_props)
    node.metadata_props["blockforge.joined"] = ", ".join(replaced)
    graph.insert_after(pair.norm, [node])
    for old, new in ((pair.addition.outputs[0], total), (pair.norm.outputs[0], y)):
        name = old.name
        new.type, new.shape = ir.TensorType(pair.dtype), old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = f"{name}_replaced", name
    graph.remove(pair.norm, safe=True)
    if not pair.addition.outputs[0].uses():
        graph.remove(pair.addition, safe=True)
    notes = (
        () if pair.dtype == ir.DataType.FLOAT else ("the norm reads the sum before it is rounded",)
    )
    return Fused(
        PATTERN[pair.norm.op_type], f"{node.domain}::{node.op_type}", node.name, replaced, notes
    )
