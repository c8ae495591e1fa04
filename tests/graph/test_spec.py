"""The spec's rules: a graph that keeps all of them, and one near miss per rule."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from blockforge.core.errors import UsageError
from blockforge.graph.rules import RULES
from blockforge.graph.spec import check_graph, faults, summarise, suspicious

GOOD = """<ir_version: 11, opset_import: ["" : 24, "blockforge" : 1]> g
(float16[batch, sequence, 8] x, int64[batch, sequence] ids, float16[8] scale, float16[8, 4] w, float[1] zero)
=> (float16[batch, sequence, 4] y)
{
    [norm] n = RMSNormalization(x, scale)
    [gate] a = blockforge.SwiGLU(n, x)
    [proj] y = MatMul(a, w)
}
<domain: "blockforge", opset_import: ["" : 24]> SwiGLU (gate, up) => (y)
{ s = Swish(gate)  y = Mul(s, up) }"""

WEIGHTS = {
    "scale": np.ones(8, np.float16),
    "w": np.ones((8, 4), np.float16),
    "zero": np.zeros(1, np.float32),
}


def good() -> ir.Model:
    model = ir.from_onnx_text(GOOD)
    for value in [v for v in model.graph.inputs if v.name in WEIGHTS]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(WEIGHTS[value.name], name=value.name)
        model.graph.register_initializer(value)
    for node in model.graph:
        for value in node.outputs:
            if value.type is None:
                value.type, value.shape = (
                    ir.TensorType(ir.DataType.FLOAT16),
                    ir.Shape(["batch", "sequence", 8]),
                )
    return model


def node(model: ir.Model, name: str) -> ir.Node:
    return next(n for n in model.graph if n.name == name)


def test_the_good_graph_passes_and_is_summarised():
    model = good()
    check_graph(model)
    assert faults(model) == []
    assert suspicious(model) == []
    summary = summarise(model)
    assert summary.operators == {"MatMul": 1, "RMSNormalization": 1, "blockforge::SwiGLU": 1}
    assert summary.dtypes == {"fp16": 6, "fp32": 1, "int64": 1}
    assert [(t.name, t.dtype, t.dims) for t in summary.inputs] == [
        ("x", "fp16", ("batch", "sequence", 8)),
        ("ids", "int64", ("batch", "sequence")),
    ]
    assert summary.outputs[0].dims == ("batch", "sequence", 4)


def move_last_first(model: ir.Model) -> None:
    last, first = model.graph[-1], model.graph[0]
    model.graph.remove(last)
    model.graph.insert_before(first, last)


def read_a_stray_value(model: ir.Model) -> None:
    node(model, "proj").replace_input_with(0, ir.Value(name="stray"))


def read_a_function_inner_value(model: ir.Model) -> None:
    inner = next(iter(model.functions.values()))[0].outputs[0]
    node(model, "proj").replace_input_with(0, inner)


def share_a_value_name(model: ir.Model) -> None:
    node(model, "gate").outputs[0].name = "n"


def share_a_node_name(model: ir.Model) -> None:
    node(model, "gate").name = "norm"


def lower_the_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 22


def pass_the_newest_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 99


def forget_a_domain(model: ir.Model) -> None:
    model.graph.opset_imports.pop("blockforge")
    model.functions.clear()


def forget_the_function(model: ir.Model) -> None:
    model.functions.clear()


def misspell(model: ir.Model) -> None:
    node(model, "proj").op_type = "Matmul"


def use_a_dropped_operator(model: ir.Model) -> None:
    gate = node(model, "gate")
    gate.domain, gate.op_type = "", "Upsample"


def add_an_input(model: ir.Model) -> None:
    proj = node(model, "proj")
    proj.resize_inputs(3)
    proj.replace_input_with(2, model.graph.initializers["scale"])


def lack_an_input(model: ir.Model) -> None:
    node(model, "proj").replace_input_with(1, None)


def add_an_attribute(model: ir.Model) -> None:
    node(model, "norm").attributes["decomposable"] = ir.AttrInt64("decomposable", 1)


def lack_an_attribute(model: ir.Model) -> None:
    gate = node(model, "gate")
    gate.domain, gate.op_type = "", "Concat"


def untype(model: ir.Model) -> None:
    node(model, "norm").outputs[0].type = None


def untype_an_input(model: ir.Model) -> None:
    model.graph.inputs[0].shape = None


def declare_another_type(model: ir.Model) -> None:
    node(model, "gate").outputs[0].type = ir.TensorType(ir.DataType.FLOAT)


def mix_types(model: ir.Model) -> None:
    w = model.graph.initializers["w"]
    w.type = ir.TensorType(ir.DataType.FLOAT)
    w.const_value = ir.tensor(np.ones((8, 4), np.float32), name="w")


def mix_types_inside_the_function(model: ir.Model) -> None:
    model.graph.inputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    norm = node(model, "norm")
    norm.op_type, norm.outputs[0].type = "Cast", ir.TensorType(ir.DataType.FLOAT16)
    norm.resize_inputs(1)
    norm.attributes["to"] = ir.AttrInt64("to", 10)


def scale_in_fp32(model: ir.Model) -> None:
    scale = model.graph.initializers["scale"]
    scale.type = ir.TensorType(ir.DataType.FLOAT)
    scale.const_value = ir.tensor(np.ones(8, np.float32), name="scale")
    norm = node(model, "norm")
    norm.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    cast = ir.node("Cast", [norm.outputs[0]], {"to": 10}, name="cast")
    cast.outputs[0].name = "cast"
    cast.outputs[0].type, cast.outputs[0].shape = (
        ir.TensorType(ir.DataType.FLOAT16),
        norm.outputs[0].shape,
    )
    model.graph.insert_after(norm, cast)
    node(model, "gate").replace_input_with(0, cast.outputs[0])


def declare_another_weight_shape(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = ir.tensor(np.ones((4, 8), np.float16), name="w")


def declare_another_weight_type(model: ir.Model) -> None:
    model.graph.initializers["zero"].const_value = ir.tensor(np.zeros(1, np.float16), name="zero")


def lose_an_untyped_weight(model: ir.Model) -> None:
    zero = model.graph.initializers["zero"]
    zero.const_value, zero.type, zero.shape = None, None, None


def quantise_with_scale_zero(model: ir.Model) -> None:
    zero = model.graph.initializers["zero"]
    made = ir.node(
        "QuantizeLinear", [model.graph.inputs[0], zero], {"output_dtype": 17}, name="quantise"
    )
    made.outputs[0].name, made.outputs[0].type = "q", ir.TensorType(ir.DataType.FLOAT8E4M3FN)
    model.graph.append(made)


NEAR_MISSES: dict[str, tuple[Callable[[ir.Model], None], str, str]] = {
    "unsorted": (move_last_first, "order", r"node 'proj' \(MatMul\): it reads 'a', which a later node computes"),
    "stray value": (read_a_stray_value, "order", r"node 'proj' \(MatMul\): it reads 'stray', which nothing computes"),
    "value of a function": (read_a_function_inner_value, "order", "it reads 's', which nothing computes"),
    "value name twice": (share_a_value_name, "names", "value 'n': two values have this name"),
    "node name twice": (share_a_node_name, "names", "node 'norm': two nodes have this name"),
    "opset too low": (
        lower_the_opset, "opset", r"node 'norm' \(RMSNormalization\): the operator exists from opset 23 on, the model imports 22"
    ),
    "opset of the future": (pass_the_newest_opset, "opset", "opset_import 99: the newest opset"),
    "domain not imported": (forget_a_domain, "opset", "opset_import has no version of domain 'blockforge'"),
    "no function": (forget_the_function, "operators", r"node 'gate' \(blockforge::SwiGLU\): ONNX has no operator SwiGLU"),
    "misspelt": (misspell, "operators", r"node 'proj' \(Matmul\): ONNX has no operator Matmul"),
    "dropped operator": (use_a_dropped_operator, "operators", "opset 24 no longer has this operator"),
    "one input more": (add_an_input, "arity", r"node 'proj' \(MatMul\): 3 inputs. The operator has 2"),
    "absent input": (lack_an_input, "arity", "input B is absent"),
    "unknown attribute": (add_an_attribute, "arity", "attribute decomposable is unknown. It has axis, epsilon, stash_type"),
    "absent attribute": (lack_an_attribute, "arity", "attribute axis is absent"),
    "no type": (untype, "typed", r"value 'n': node 'norm' \(RMSNormalization\) gives it no declared type"),
    "no rank": (untype_an_input, "typed", "graph input 'x'"),
    "declared type differs": (
        declare_another_type, "agree", r"value 'a' of node 'gate' \(blockforge::SwiGLU\): declared fp32, but the operator gives fp16"
    ),
    "mixed types": (mix_types, "agree", r"node 'proj' \(MatMul\): input B of MatMul has fp32 beside fp16"),
    "mixed types in a function": (
        mix_types_inside_the_function, "agree", "node 'gate' .*, body: .*: input B of Mul has fp32 beside fp16"
    ),
    "16-bit norm with fp32 scale": (
        scale_in_fp32, "one type", r"node 'norm' \(RMSNormalization\): input 0 is fp16, input 1 is fp32"
    ),
    "weight of another shape": (declare_another_weight_shape, "weights", "weight 'w': declared .*8,4.*, its data has the shape .*4,8"),
    "weight of another type": (declare_another_weight_type, "weights", "weight 'zero': declared fp32, its data is fp16"),
    "weight without anything": (lose_an_untyped_weight, "weights", "weight 'zero': it has neither data nor"),
    "scale of zero": (quantise_with_scale_zero, "scales", r"node 'quantise' \(QuantizeLinear\): scale 'zero' holds 0.0"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "rule", "words"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses(spoil, rule, words):
    model = good()
    spoil(model)
    with pytest.raises(UsageError, match=words) as caught:
        check_graph(model)
    assert f"Rule {rule!r}" in str(caught.value)
    assert faults(model)[0][0] == rule


def test_every_rule_has_a_near_miss():
    assert {rule for _, rule, _ in NEAR_MISSES.values()} == {rule.name for rule in RULES}


@pytest.fixture
def external(tmp_path) -> Callable[..., ir.Model]:
    """The good graph with `w` in a file of 64 bytes."""
    (tmp_path / "data").write_bytes(bytes(64))

    def build(location="data", offset=0, length=64) -> ir.Model:
        model = good()
        model.graph.initializers["w"].const_value = ir.ExternalTensor(
            location,
            offset,
            length,
            ir.DataType.FLOAT16,
            shape=ir.Shape([8, 4]),
            name="w",
            base_dir=tmp_path,
        )
        return model

    return build


def test_external_data_that_fits(external):
    check_graph(external())
    check_graph(external(length=None))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"location": "missing"}, "its data file missing is missing"),
        ({"offset": 1}, "bytes 1 to 65 of data, which has 64"),
        ({"length": 63}, "63 bytes of external data. Type and shape need 64 bytes"),
        ({"location": "../data"}, "lies outside the model's folder"),
    ],
)
def test_external_data_that_does_not(external, where, words):
    with pytest.raises(UsageError, match=f"weight 'w': .*{words}"):
        check_graph(external(**where))


def test_rules_reach_into_subgraphs():
    text = """<ir_version: 11, opset_import: ["" : 24]> g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Relu(b0)  b0 = Neg(x) },
                   else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
    with pytest.raises(UsageError, match="it reads 'b0', which a later node computes"):
        check_graph(ir.from_onnx_text(text))
