"""Which values are wide and which are 16 bit, by operator, and that no declared type is stale."""

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.export.precision import PrecisionOptions, Ranges, typed_file, typed_model
from blockforge.graph.io import load_model

from .decoders import Shape, decoder
from .runs import UNIT, exact, relative, typed
from .test_repair import IDS

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def text(body: str, opset: int = 23) -> onnx.ModelProto:
    """A model written as ONNX text."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{body}')
    onnx.checker.check_model(model, full_check=True)
    return model


def types_of(model: ir.Model) -> dict[str, ir.DataType]:
    return {v.name: v.dtype for n in model.graph for v in n.outputs}


@pytest.mark.parametrize("precision", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("norm", ["rms", "spelled_rms", "layer", "spelled_layer"])
@pytest.mark.parametrize("fuse", [True, False])
def test_decoders_stay_at_the_noise_of_their_type(precision, norm, fuse):
    proto = decoder(Shape(norm=norm, bias=True, attention="spelled", epsilon=1e-12))
    options = PrecisionOptions(precision, fuse=fuse)
    model, report, run = typed(proto, IDS, options)
    assert run.overflow == () and report.islands == [] and report.scaled == {}
    assert relative(run.outputs["logits"], exact(proto, IDS)["logits"]) < 8 * UNIT[precision]
    products = [n for n in model.graph if n.op_type in ("MatMul", "Attention")]
    assert {v.dtype for n in products for v in n.outputs} == {ir.DataType(precision.onnx)}
    sums = [n for n in model.graph if n.op_type in ("ReduceMean", "Sqrt", "Pow", "Softmax")]
    assert {v.dtype for n in sums for v in n.outputs} <= {FLOAT}
    weights = [v for k, v in model.graph.initializers.items() if k.endswith("proj.weight")]
    assert {v.dtype for v in weights} == {ir.DataType(precision.onnx)}
    assert report.unproved == []


def test_a_tied_table_is_stored_once():
    model, _, _ = typed(decoder(Shape(tied=True)), IDS)
    tables = [v for v in model.graph.initializers.values() if list(v.shape) == [24, 16]]
    assert [v.name for v in tables] == ["embed.weight"]
    assert len(tables[0].uses()) == 2


def test_angles_stay_wide_and_are_cast_once():
    proto = text("""
        g (int64[1, s] p, float[1, s, 8] x) => (float[1, s, 8] y, float[1, s, 8] z)
        <float[1, 1, 8] f = {1, 0.5, 0.25, 0.1, 0.05, 0.01, 0.005, 0.001}> {
            axes = Constant<value_ints = [2]>()
            q = Cast<to = 1>(p)
            r = Unsqueeze(q, axes)
            angle = MatMul(r, f)
            c = Cos(angle)
            y = Mul(x, c)
            z = Sub(x, c)
        }""")
    feeds = {"p": torch.arange(3000, 3005)[None], "x": torch.ones(1, 5, 8)}
    model, report, run = typed(proto, feeds)
    kinds = types_of(model)
    assert {n: kinds[n] for n in ("q", "r", "angle", "c")} == dict.fromkeys(
        ("q", "r", "angle", "c"), FLOAT
    )
    # x, c; y and z back to the outputs' type
    assert report.casts == 4
    truth = exact(proto, feeds)
    assert relative(run.outputs["y"], truth["y"]) < 2 * UNIT[DType.FP16]


def test_a_sine_of_data_does_not_widen_what_feeds_it():
    proto = text("""
        g (float[1, s, 2] x) => (float[1, s, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
        { h = MatMul(x, w)  y = Sin(h) }""")
    model, _, _ = typed(proto, {"x": torch.ones(1, 3, 2)})
    kinds = {n.op_type: n.inputs[0].dtype for n in model.graph if n.op_type in ("MatMul", "Sin")}
    assert kinds == {"MatMul": HALF, "Sin": FLOAT}


@pytest.mark.parametrize(("number", "wide"), [("1e-12", True), ("0.001", False)])
def test_an_epsilon_that_flushes_stays_wide_with_what_divides_by_it(number, wide):
    proto = text(f"""
        g (float[1, s, 2] x) => (float[1, s, 2] y) <float[2, 2] w = {{1, 2, 3, 4}}, float e = {{{number}}}>
        {{ h = MatMul(x, w)  a = Abs(h)  b = Add(a, e)  y = Div(h, b) }}""")
    feeds = {"x": torch.zeros(1, 3, 2)}
    model, _, run = typed(proto, feeds)
    assert (types_of(model)["b"] == FLOAT) == wide
    assert torch.isfinite(run.outputs["y"]).all()


def test_integers_and_booleans_are_untouched():
    proto = text("""
        g (int64[1, s] i, float[1, s] x) => (float[1, s] y, int64[2] n, bool[1, s] b)
        { n = Shape(x)  zero = Constant<value = int64 {0}>()  b = Greater(i, zero)
          f = Cast<to = 1>(b)  y = Mul(x, f) }""")
    feeds = {"i": torch.tensor([[0, 1, 2]]), "x": torch.ones(1, 3)}
    model, report, run = typed(proto, feeds)
    assert types_of(model)["f"] == HALF  # 0 and 1: one Cast, straight to the type
    assert report.casts == 2
    assert torch.equal(run.outputs["y"], torch.tensor([[0.0, 1.0, 1.0]]))


def test_io_graph_types_inputs_and_outputs():
    proto = decoder(Shape())
    model, _, run = typed(proto, IDS, PrecisionOptions(DType.FP16, io="graph"))
    assert [v.dtype for v in model.graph.outputs] == [HALF]
    assert run.outputs["logits"].dtype == torch.float16
    assert [v.name for v in model.graph.outputs] == ["logits"]


def test_branches_and_loops():
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carry", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carry", TensorProto.FLOAT, [2, 2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 2]),
        ],
    )

    def branch(op):
        out = helper.make_tensor_value_info(op, TensorProto.FLOAT, [2, 2])
        return helper.make_graph([helper.make_node(op, ["h"], [op])], op, [], [out])

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node(
                "If", ["c"], ["z"], then_branch=branch("Exp"), else_branch=branch("Relu")
            ),
            helper.make_node("Loop", ["three", "", "z"], ["y"], body=body),
        ],
        "control",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [
            numpy_helper.from_array(torch.tensor([[0.5, 0.2], [0.1, 0.4]]).numpy(), "w"),
            numpy_helper.from_array(torch.tensor(3).numpy(), "three"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    proto = onnx.shape_inference.infer_shapes(proto)
    for choice in (True, False):
        feeds = {"x": torch.tensor([[1.0, 2.0], [3.0, -4.0]]), "c": torch.tensor(choice)}
        model, _, run = typed(proto, feeds)
        assert relative(run.outputs["y"], exact(proto, feeds)["y"]) < 8 * UNIT[DType.FP16]
    products = [n for g in model.graphs() for n in g if n.op_type == "MatMul"]
    assert [n.outputs[0].dtype for n in products] == [HALF, HALF]


def test_a_foreign_function_is_inlined_and_typed():
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "own": 1]>
        g (float[b, 4] x) => (float[b, 4] y) { y = own.unit(x) }
        <domain: "own", opset_import: ["": 21]>
        unit (x) => (y) {
            e = Constant<value_float = 1e-12>()  two = Constant<value_float = 2.0>()
            last = Constant<value_ints = [-1]>()
            s = Pow(x, two)  m = ReduceMean(s, last)  k = Add(m, e)  r = Sqrt(k)  y = Div(x, r)
        }""")
    feeds = {"x": torch.full((2, 4), 300.0)}
    _, report, run = typed(proto, feeds, PrecisionOptions(DType.FP16, fuse=False))
    assert run.overflow == () and report.wide_nodes
    assert torch.equal(run.outputs["y"], torch.ones(2, 4))


def test_files(tmp_path):
    source, output, again = (tmp_path / n for n in ("a.onnx", "b.onnx", "c.onnx"))
    onnx.save(decoder(Shape()), source)
    options = PrecisionOptions(DType.FP16)
    report = typed_file(source, output, [IDS], options)
    assert report.already is None and report.to_json()["precision"] == "fp16"
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"
    second = typed_file(output, again, [], options)
    assert second.already == "fp16"
    assert ir.to_proto(load_model(again)).graph.node == ir.to_proto(load_model(output)).graph.node
    with pytest.raises(UsageError, match="fp16 already"):
        typed_file(output, tmp_path / "d.onnx", [IDS], PrecisionOptions(DType.BF16))
    with pytest.raises(UsageError, match="cannot write there"):
        typed_file(source, tmp_path / "no folder" / "e.onnx", [IDS], options)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".onnx") == [
        "a.onnx", "b.onnx", "c.onnx",
    ]  # fmt: skip


def test_a_quantised_graph_is_refused():
    proto = text("""
        g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}>
        { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""")
    with pytest.raises(UsageError, match="quantised already"):
        typed_model(ir.from_proto(proto), Ranges(), PrecisionOptions(DType.FP16))


@pytest.mark.parametrize(
    "wrong", [{"precision": DType.FP32}, {"island": DType.FP16}, {"margin": 0.5}]
)
def test_options_that_make_no_sense(wrong):
    with pytest.raises(UsageError):
        PrecisionOptions(**{"precision": DType.FP16, **wrong})
