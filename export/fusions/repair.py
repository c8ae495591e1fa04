"""Mend what exporters are known to get wrong, before anything is recognised; each repair is reported.

RMSNormalization(x16, scale32)            -> Cast, RMSNormalization in float32, Cast back
RotaryEmbedding with a cache of batch 1   -> the cache expanded to the batch
opset_import below the operators used     -> the lowest opset that has them
"""

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ...core.domain import DOMAIN
from ..algebra.facts import Facts
from ..opset import required_opset
from .match import Tape, node_name
from .report import FusionReport

NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def repair(model: ir.Model, report: FusionReport) -> None:
    """Mend `model` in place; functions of other tools are written out, so that what they hide is seen."""
    foreign = [f for f in model.functions.values() if f.domain != DOMAIN]
    if foreign:
        InlinePass(lambda function: function.domain != DOMAIN)(model)
        report.repairs.append(
            f"functions written out: {', '.join(sorted({f.name for f in foreign}))}"
        )
    needed, declared = required_opset(model), model.opset_imports.get("", 1)
    if needed > declared:
        model.opset_imports[""] = needed
        report.repairs.append(f"opset_import said {declared}, the operators need {needed}")
    for graph in model.graphs():
        suspects = [
            n
            for n in graph
            if n.domain == "" and n.op_type in ("RMSNormalization", "RotaryEmbedding")
        ]
        if not suspects:
            continue
        facts = Facts(graph)
        for node in suspects:
            done = (
                _mixed_types(facts, node)
                if node.op_type == "RMSNormalization"
                else _single_cache(facts, node)
            )
            if done:
                report.repairs.append(f"{node_name(node)}: {done}")


def _mixed_types(facts: Facts, node: ir.Node) -> str:
    x, scale = node.inputs[0], node.inputs[1]
    kinds = facts.dtype(x), facts.dtype(scale)
    if x is None or kinds[0] not in NARROW or kinds[1] != ir.DataType.FLOAT:
        return ""
    output = node.outputs[0]
    declared, dims = output.dtype, facts.dims(x)
    tape = Tape(facts)
    wide = tape.op("Cast", [x], ir.DataType.FLOAT, dims, to=ir.DataType.FLOAT)
    _insert(facts.graph, node, tape, before=True)
    node.replace_input_with(0, wide)
    if declared in NARROW:
        tape = Tape(facts)
        name = output.name
        narrow = tape.op("Cast", [output], declared, dims, to=declared)
        cast = tape.nodes[0]
        output.replace_all_uses_with(narrow, replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        output.name, output.type = f"{name}_wide", ir.TensorType(ir.DataType.FLOAT)
        _insert(facts.graph, node, tape, before=False)
        narrow.name = name
    return f"its scale is float32 and its input {kinds[0].name.lower()}: computed in float32"


def _single_cache(facts: Facts, node: ir.Node) -> str:
    x = facts.dims(node.inputs[0])
    caches = node.inputs[1:3]
    dims = [facts.dims(v) for v in caches]
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return ""
    if x is None or any(d is None or len(d) != 3 or d[0] != 1 for d in dims) or x[0] == 1:
        return ""
    source = node.inputs[0]
    assert source is not None
    tape = Tape(facts)
    batch = tape.op("Shape", [source], ir.DataType.INT64, (1,), start=0, end=1)
    size = tape.op("Concat", [batch, tape.ints(1, 1)], ir.DataType.INT64, (3,), axis=0)
    wide = []
    for cache, d in zip(caches, dims, strict=True):
        assert d is not None
        wide.append(tape.op("Expand", [cache, size], facts.dtype(cache), (x[0], *d[1:])))
    _insert(facts.graph, node, tape, before=True)
    for position, value in enumerate(wide):
        node.replace_input_with(1 + position, value)
    return "its cos and sin caches have batch 1: expanded to the batch"


def _insert(graph: ir.Graph, node: ir.Node, tape: Tape, *, before: bool) -> None:
    base = f"{node.outputs[0].name}_repair_{'before' if before else 'after'}"
    for value in tape.initializers:
        value.name = f"{base}_{len(graph.initializers)}"
        graph.register_initializer(value)
    for index, new in enumerate(tape.nodes):
        new.name = (
            f"{node_name(node)}_repair_{'before' if before else 'after'}_{new.op_type}_{index}"
        )
        for value in new.outputs:
            value.name = value.name or f"{base}_{new.op_type}_{index}"
    (graph.insert_before if before else graph.insert_after)(node, tape.nodes)
