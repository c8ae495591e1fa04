"""Plugins are chosen by policy and marked for TensorRT's parser; everything else keeps its body."""

import onnx_ir as ir
import pytest

from blockforge.core.domain import DOMAIN
from blockforge.core.errors import UsageError
from blockforge.engines.plugin_nodes import choose_plugins, mark_plugins
from blockforge.engines.target import Target

TEXT = """<ir_version: 10, opset_import: ["" : 24, "blockforge" : 1]>
    g (float16[b, 8] x, float16[8] w) => (float16[b, 8] y) {
        n = blockforge.RMSNorm<epsilon = 1e-5>(x, w)
        y = blockforge.SwiGLU(n, x)
    }
    <domain: "blockforge", opset_import: ["" : 24]>
    RMSNorm<epsilon>(x, w) => (y) { y = RMSNormalization(x, w) }
    <domain: "blockforge", opset_import: ["" : 24]>
    SwiGLU(gate, up) => (y) {
        s = Swish(gate)
        y = Mul(s, up)
    }"""
FULL, RTX = Target.parse("tensorrt:sm89"), Target.parse("tensorrt-rtx:sm89")


@pytest.fixture
def model():
    return ir.from_onnx_text(TEXT)


def by_operator(model):
    return {node.op_type: node for node in model.graph}


def test_a_named_operator_becomes_a_plugin_call(model):
    choices = choose_plugins(model, FULL, ("RMSNorm",))
    assert {c.operator: c.plugin for c in choices} == {"RMSNorm": True, "SwiGLU": False}
    marked = mark_plugins(model, choices)
    node = by_operator(marked)["RMSNorm"]
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    assert values["plugin_namespace"] == DOMAIN and values["aot"] == 1
    assert values["epsilon"] == pytest.approx(1e-5)
    assert values["weight_offset"] == 0  # a default, spelled out: the plugin layer knows none
    assert {name for _, name, _ in marked.functions} == {"SwiGLU"}
    assert not by_operator(marked)["SwiGLU"].attributes


def test_the_bundle_s_own_graph_stays_as_it_is(model):
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    mark_plugins(model, choose_plugins(model, FULL, ("RMSNorm", "SwiGLU")))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("target", [FULL, RTX, Target.parse("onnxruntime:cpu")], ids=str)
@pytest.mark.parametrize("setting", ["auto", "off"])
def test_without_evidence_no_plugin_is_taken(model, target, setting):
    choices = choose_plugins(model, target, setting)
    assert len(choices) == 2 and all(c.reason and not c.plugin for c in choices)
    assert mark_plugins(model, choices) is model


@pytest.mark.parametrize(
    ("target", "setting", "words"),
    [
        (RTX, ("RMSNorm",), "takes no plugins"),
        (FULL, ("RMSNorms",), "RMSNorm"),
        (FULL, "always", "auto, off"),
        (Target.parse("tensorrt:sm75"), ("SwiGLU",), "no kernel for sm_75"),
    ],
)
def test_what_cannot_be_a_plugin_is_refused(model, target, setting, words):
    with pytest.raises(UsageError, match=words):
        choose_plugins(model, target, setting)


def test_an_attribute_that_the_operator_lacks_is_refused(model):
    by_operator(model)["RMSNorm"].attributes["axis"] = ir.AttrInt64("axis", 1)
    with pytest.raises(UsageError, match="axis"):
        mark_plugins(model, choose_plugins(model, FULL, ("RMSNorm",)))
