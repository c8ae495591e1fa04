"""Whole files: numbers against float64, the same file in ONNX Runtime, and the faults that must not get through."""

import onnx_ir as ir
import pytest
import torch
from engine_graphs import HIDDEN, Chain, write
from quantize_graphs import exact, numbers, relative

from blockforge.core.errors import UsageError
from blockforge.engines.session import Session
from blockforge.export.calibration.record import CalibrationRecord, ValueRecord
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import Origin, quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.graph.spec import check_graph

FEEDS = [{"hidden_states": numbers(2, 32, HIDDEN, seed=s, dtype=torch.float16)} for s in (1, 2)]
UNSEEN = {"hidden_states": numbers(2, 9, HIDDEN, seed=3, dtype=torch.float16)}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Two Llama-like blocks in FP16: 14 linears."""
    return write(Chain("fp16", blocks=2).build(), tmp_path_factory.mktemp("chain"), "fp16.onnx")


@pytest.fixture(scope="module")
def quantized(chain):
    """The chain in FP8, with its report."""
    target = chain.with_name("fp8.onnx")
    return target, quantize_file(chain, target, FEEDS)


def outputs(path, feeds=UNSEEN):
    return TypedEvaluator(path).run(feeds).outputs["output"]


def truth(path, feeds=UNSEEN):
    wide = {name: value.double() for name, value in feeds.items()}
    return exact(load_model(path), wide)["output"]


def test_the_file_says_what_it_computes(quantized):
    """Every product reads codes through DequantizeLinear on both sides, and nothing else is quantised."""
    path, report = quantized
    model = load_model(path)
    check_graph(model)
    products = [n for n in model.graph if n.op_type == "MatMul"]
    assert len(products) == 8 and report.packed == 6 and len(report.linears) == 8
    for node in products:
        assert [v.producer().op_type for v in node.inputs] == ["DequantizeLinear"] * 2
        x, w = (v.producer() for v in node.inputs)
        assert (
            x.inputs[0].producer().op_type == "QuantizeLinear" and x.inputs[1].shape.numpy() == ()
        )
        assert w.inputs[0].const_value.dtype == ir.DataType.FLOAT8E4M3FN
        assert w.inputs[1].dtype == ir.DataType.FLOAT and w.attributes["axis"].as_int() == 1
        assert w.inputs[1].shape.numpy() == (w.inputs[0].shape[1],)
    quantizers = [n for n in model.graph if n.op_type == "QuantizeLinear"]
    readers = {
        u.node.op_type
        for q in quantizers
        for d in q.outputs[0].uses()
        for u in d.node.outputs[0].uses()
    }
    assert len(quantizers) == 8 and readers == {"MatMul"}


def test_the_file_shrinks_to_what_fp8_needs(chain, quantized):
    path, report = quantized
    saved = sum(x.size_in * x.size_out for x in report.linears)
    scales = 4 * sum(x.size_out + 1 for x in report.linears)
    assert (
        0 <= saved - (report.bytes_before - report.bytes_after) - scales < 200
    )  # the sizes of the Splits
    assert (
        path.with_name("fp8.onnx.data").stat().st_size
        < 0.7 * chain.with_name("fp16.onnx.data").stat().st_size
    )


def test_the_numbers_are_near_the_unquantised_ones(chain, quantized):
    """3 bits of mantissa lose about 2.6 % a number; two blocks of four products each add up to a few times that."""
    assert 0.005 < relative(outputs(quantized[0]), truth(chain)) < 0.12


def test_onnxruntime_computes_the_same(chain, quantized):
    session = Session(quantized[0], target="onnxruntime:cpu")
    (found,) = session.run({k: v.numpy() for k, v in UNSEEN.items()}).values()
    session.close()
    # Where fp16 sums in another order fall beside a middle, a code differs by one: 6 % of that number. Both are
    # equally far from the truth, which neither would be if they computed something else.
    ours, theirs = outputs(quantized[0]), torch.from_numpy(found)
    assert relative(theirs, ours) < 0.5 * relative(ours, truth(chain))
    assert relative(theirs, truth(chain)) == pytest.approx(relative(ours, truth(chain)), rel=0.1)


def test_the_report_is_plain_data_and_adds_up(quantized):
    plain = quantized[1].to_json()
    assert plain["num_linears"] == plain["num_quantized"] == 8
    assert plain["share_of_flops"] == pytest.approx(1)
    first = plain["linears"][0]
    assert first["name"] == "layers.0.self_attn.q_proj_k_proj_v_proj"
    value = plain["calibration"]["values"]["layers.0.input_layernorm"]
    assert first["scale"] == value["scale"] and first["amax"] == value["amax"] > 0
    assert plain["calibration"]["tokens"] == 2 * 2 * 32
    assert 0 < first["error"] < 0.06 and first["observer"] == "mse"


def test_quantising_again_changes_nothing(quantized, tmp_path):
    again = tmp_path / "fp8.onnx"
    report = quantize_file(quantized[0], again, FEEDS)
    assert report.already and not report.quantized
    assert {x.reason for x in report.linears} == {"its weight is quantised already"}
    assert content(again) == content(quantized[0])


@pytest.mark.parametrize("wanted", ["fp8-weights", "int8-weights", "nvfp4"])
def test_a_file_in_another_format_is_not_taken_for_the_wanted_one(quantized, tmp_path, wanted):
    words = rf"quantise to {wanted}(.|\n)*8 of its linears(.|\n)*q_proj_k_proj_v_proj to fp8\. Give"
    with pytest.raises(UsageError, match=words):
        quantize_file(quantized[0], tmp_path / "x.onnx", FEEDS, QuantizeOptions(format=wanted))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["fp8-weights", "int8-weights", "int4-weights", "nvfp4"])
def test_a_format_of_weights_is_recognised(chain, tmp_path, format):
    options = QuantizeOptions(format=format, rounding="nearest")
    quantize_file(chain, tmp_path / "x.onnx", [], options)
    assert quantize_file(tmp_path / "x.onnx", tmp_path / "y.onnx", [], options).already
    with pytest.raises(UsageError, match=f"to another format: .* to {format}\\. Give"):
        quantize_file(tmp_path / "x.onnx", tmp_path / "z.onnx", FEEDS)


def content(path):
    """Nodes with their attributes, and every weight's bytes."""
    graph = load_model(path).graph
    nodes = [
        (
            n.op_type,
            [v and v.name for v in n.inputs],
            [v.name for v in n.outputs],
            str(n.attributes),
        )
        for n in graph
    ]
    return nodes, {k: v.const_value.tobytes() for k, v in graph.initializers.items()}


def test_a_known_calibration_is_used_as_it_is(chain, quantized, tmp_path):
    record = quantized[1].calibration
    values = dict(record.values)
    values["layers.0.input_layernorm"] = ValueRecord(amax=1.0, scale=0.5, observer="by hand")
    known = Origin("a file", 7, CalibrationRecord(values=values))
    report = quantize_file(chain, tmp_path / "q.onnx", FEEDS, origin=known)
    assert report.linears[0].scale == 0.5 and report.linears[0].observer == "by hand"
    assert (report.calibration.source, report.calibration.seed) == ("a file", 7)
    assert report.linears[1].scale == quantized[1].linears[1].scale


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        (QuantizeOptions(rounding="nearest"), 0.12),
        (QuantizeOptions(format="fp8-weights"), 0.08),
        (QuantizeOptions(format="int8-weights"), 0.03),
        (QuantizeOptions(format="int4-weights"), 0.35),
        (QuantizeOptions(format="nvfp4"), 0.35),
        (QuantizeOptions(attention=True), 0.14),
        (QuantizeOptions(pack=False), 0.12),
    ],
    ids=lambda v: (
        f"{v.format}-{v.rounding}-{v.attention}-{v.pack}" if isinstance(v, QuantizeOptions) else ""
    ),
)
def test_every_format_is_a_graph_that_keeps_the_spec(chain, tmp_path, options, loss):
    target = tmp_path / "q.onnx"
    report = quantize_file(chain, target, FEEDS, options)
    check_graph(load_model(target))
    assert report.share_of_flops == pytest.approx(1)
    assert 0 < relative(outputs(target), truth(chain)) < loss


@pytest.mark.parametrize("form", ["fp8-weights", "int8-weights", "nvfp4"])
def test_weights_rounded_to_nearest_need_no_feeds(chain, tmp_path, form):
    options = QuantizeOptions(format=form, rounding="nearest")
    report = quantize_file(chain, tmp_path / "q.onnx", [], options)
    assert len(report.quantized) == 8 and report.linears[0].error is None
    quantize_file(chain, tmp_path / "fed.onnx", FEEDS, options)
    assert content(tmp_path / "q.onnx") == content(tmp_path / "fed.onnx")


def test_attention_is_quantised_on_its_three_inputs(chain, tmp_path):
    report = quantize_file(chain, tmp_path / "q.onnx", FEEDS, QuantizeOptions(attention=True))
    model = load_model(tmp_path / "q.onnx")
    for node in (n for n in model.graph if n.op_type == "Attention"):
        assert [v.producer().op_type for v in node.inputs[:3]] == ["DequantizeLinear"] * 3
    assert len(report.calibration.values) == 8 + 6
