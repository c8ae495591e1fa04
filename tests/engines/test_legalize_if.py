"""Attention inside If: refused as it is, spelled out it builds, keeps its numbers, and kernels name its nodes.

The oracle is ONNX's own reference evaluator on the graph before legalisation.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from engine_graphs import TYPES, model_of
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import BuildError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import compile as compiling
from blockforge.engines.layers_file import load_layers
from blockforge.engines.legalize import legalize
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
DIMS = ["b", 4, "s", 16]
NAME = "layers.0.self_attn/Attention"


def attention(output, name=NAME):
    return helper.make_node("Attention", ["q", "k", "v"], [output], name=name, is_causal=1)


def graph(dtype, *, outside=False, name=NAME):
    """y = Attention(q, k, v) if c else v; outside: z = the same before the If, under the same name."""
    edge = lambda n: [helper.make_tensor_value_info(n, TYPES[dtype][0], DIMS)]  # noqa: E731
    then = helper.make_graph([attention("y_then", name)], "then", [], edge("y_then"))
    skip = helper.make_node("Identity", ["v"], ["y_else"], name="skip")
    other = helper.make_graph([skip], "else", [], edge("y_else"))
    node = helper.make_node(
        "If", ["c"], ["y"], name="layers.0/If", then_branch=then, else_branch=other
    )
    nodes, outputs = [node], {"y": (dtype, DIMS)}
    if outside:
        nodes, outputs = [attention("z", name), node], {**outputs, "z": (dtype, DIMS)}
    inputs = {"c": (TensorProto.BOOL, []), **dict.fromkeys("qkv", (dtype, DIMS))}
    return model_of(nodes, inputs, outputs)


def legal(model):
    changed, lines = legalize(ir.from_proto(model), RTX)
    return ir.to_proto(changed), lines


def build(model, folder):
    path = folder / "model.onnx"
    onnx.save(model, path)
    sizes = ShapeRange((1, 4, 1, 16), (2, 4, 3, 16), (4, 4, 8, 16))
    profile = {"c": ShapeRange((), (), ()), **dict.fromkeys("qkv", sizes)}
    return compiling.compile_engine(compiling.CompileRequest(path, RTX, profile, folder))


def test_tensorrt_refuses_it_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "legalize", lambda model, target: (model, ()))
    monkeypatch.setattr(compiling, "refuse", lambda *_: None)  # preflight says it first
    with pytest.raises(BuildError, match="unknown input tensor"):
        build(graph("fp16"), tmp_path)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_spelled_out_it_builds_and_kernels_name_the_node(dtype, tmp_path):
    record = build(graph(dtype), tmp_path)
    assert record.legalized == (f"{NAME}: inside a subgraph, spelled out as MatMul and Softmax",)
    assert record.violations == ()
    nodes = {n for k in load_layers(tmp_path / record.layers).kernels for n in k.nodes}
    assert f"{NAME}/MatMul" in nodes and not any("branch" in node for node in nodes)


@pytest.mark.parametrize("taken", [True, False])
def test_numbers_stay(taken):
    model = graph("fp32")
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((2, 4, 3, 16)).astype(np.float32) for n in "qkv"}
    feeds["c"] = np.array(taken)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    (actual,) = ReferenceEvaluator(legal(model)[0]).run(None, feeds)
    # as test_legalize.py: a weighted mean of values below 4, 16 roundings
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * np.finfo(np.float32).eps * 4)


def test_attention_beside_an_if_is_left_alone():
    changed, lines = legal(graph("fp16", outside=True))
    assert [n.op_type for n in changed.graph.node] == ["Attention", "If"]
    assert len(lines) == 1 and "inside a subgraph" in lines[0]


@pytest.mark.parametrize("name", [NAME, ""], ids=["same name", "no name"])
def test_new_values_hide_none_of_an_outer_graph(name):
    model = graph("fp16", outside=True, name=name)
    for node in model.graph.node:  # both need new nodes: a softcap is spelled out anywhere
        if node.op_type == "Attention":
            node.attribute.append(helper.make_attribute("softcap", 1.0))
    changed, _ = legal(model)
    outer = {name for node in changed.graph.node for name in node.output}
    (branch,) = (n for n in changed.graph.node if n.op_type == "If")
    then = next(a.g for a in branch.attribute if a.name == "then_branch")
    inner = {name for node in then.node for name in node.output}
    assert len(inner) > 5 and not outer & inner
