"""The search keeps high exactly what a budget needs: planted sensitive linears, its own arithmetic against a plain run."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.errors import GateError, UsageError
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.export.search.cost import roofline
from blockforge.export.search.measures import distance
from blockforge.export.search.ranking import Budget
from blockforge.export.search.rounded import Switchboard
from blockforge.export.search.search import search_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model

WIDTH, LINEARS = 32, 6
OPTIONS = QuantizeOptions(rounding="nearest", observer="amax", head=True)


def chain(path, sensitive):
    """x -> six linears with Tanh between; the input of `sensitive` carries one channel 1e5 times as large.

    An outlier of that size pushes all other channels of the input to the last subnormals of E4M3.
    """
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(LINEARS):
        boost = np.ones(WIDTH, np.float32)
        if i == sensitive:
            boost[5] = 1e5
        weights.append(numpy_helper.from_array(boost, f"boost{i}"))
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        weight[5] /= boost[5]
        weights.append(numpy_helper.from_array(weight, f"layers.{i}.proj.weight"))
        nodes += [
            helper.make_node("Mul", [value, f"boost{i}"], [f"in{i}"]),
            helper.make_node("MatMul", [f"in{i}", f"layers.{i}.proj.weight"], [f"out{i}"]),
            helper.make_node("Tanh", [f"out{i}"], [f"act{i}"]),
        ]
        value = f"act{i}"
    shape = ["batch", WIDTH]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def feeds(seed, count=2):
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(40, WIDTH, generator=generator)} for _ in range(count)]


@pytest.fixture(scope="module", params=[1, 4])
def planted(request, tmp_path_factory):
    sensitive = request.param
    return sensitive, chain(tmp_path_factory.mktemp("chain") / "model.onnx", sensitive)


def test_the_switchboard_computes_what_the_written_file_computes(planted, tmp_path):
    sensitive, path = planted
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    trial = feeds(2)
    kept = [x for x in board.candidates if f"layers.{sensitive}." in x.name]
    assert len(kept) == 1
    plain = [TypedEvaluator(path).run(f).outputs for f in trial]
    assert distance("error", plain, board.outputs(trial, None)) == 0
    whole = quantized_outputs(path, tmp_path / "all.onnx", trial)
    assert distance("error", whole, board.outputs(trial, ())) < 1e-6
    written = quantized_outputs(path, tmp_path / "q.onnx", trial, keep=(kept[0].name,))
    # Its scales were taken behind another prefix: roundings differ, what they cost does not.
    lost = distance("error", plain, board.outputs(trial, kept))
    assert distance("error", plain, written) == pytest.approx(lost, rel=0.25)


def quantized_outputs(source, output, trial, **choice):
    quantize_file(source, output, feeds(1), replace(OPTIONS, **choice))
    return [TypedEvaluator(output).run(feed).outputs for feed in trial]


def test_one_alone_is_the_file_with_only_that_one(planted, tmp_path):
    _, path = planted
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    trial = feeds(2)
    linear, outputs = next(iter(board.alone(trial, board.candidates)))
    written = quantized_outputs(path, tmp_path / "q.onnx", trial, only=(linear.name,))
    assert distance("error", written, outputs) < 1e-6  # the first linear: nothing before it differs
    rest = [x for x in board.candidates if x is not linear]
    assert distance("error", outputs, board.outputs(trial, rest)) == 0


def test_the_planted_linear_alone_is_kept(planted, tmp_path):
    sensitive, path = planted
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    trial = feeds(2)
    reference = board.outputs(trial, None)
    worst = distance("error", reference, board.outputs(trial, ()))
    report = search_file(
        path, tmp_path / "q.onnx", feeds(1), trial, OPTIONS,
        Budget(worst / 2, "error"), roofline("l4", 128),
    )  # fmt: skip
    assert [c.name for c in report.kept] == [f"layers.{sensitive}.proj"]
    assert report.reached <= worst / 2 < report.all_quantized
    assert report.kept[0].gain == max(c.gain for c in report.choices)
    budget, line = report.lines("fp32")
    assert budget.startswith(f"budget: relative error at most {worst / 2:g}; ") and budget.endswith(
        "1 kept high"
    )
    assert line.startswith(f"layers.{sensitive}.proj: fp32, gains ") and "time" in line
    again = search_file(
        path, tmp_path / "again.onnx", feeds(1), trial, OPTIONS,
        Budget(worst / 2, "error"), roofline("l4", 128),
    )  # fmt: skip
    assert again.choices == report.choices
    assert (tmp_path / "q.onnx.data").read_bytes() == (tmp_path / "again.onnx.data").read_bytes()


def test_a_budget_that_holds_keeps_nothing_and_one_that_cannot_is_an_error(planted, tmp_path):
    _, path = planted
    loose = search_file(
        path,
        tmp_path / "q.onnx",
        feeds(1),
        feeds(2),
        OPTIONS,
        Budget(10.0, "error"),
        roofline("l4", 64),
    )
    assert loose.kept == () and loose.quantize.share_of_flops == pytest.approx(1)
    (tmp_path / "none").mkdir()
    with pytest.raises(GateError, match="6 of 6 linears kept high"):
        search_file(
            path, tmp_path / "none" / "q.onnx", feeds(1), feeds(2), OPTIONS,
            Budget(-1.0, "error"), roofline("l4", 64),
        )  # fmt: skip
    assert list((tmp_path / "none").iterdir()) == []


def test_the_least_share_is_held_too(planted, tmp_path):
    _, path = planted
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    trial = feeds(2)
    worst = distance("error", board.outputs(trial, None), board.outputs(trial, ()))
    share = (LINEARS - 1) / LINEARS  # equal linears, one of which the budget keeps

    def searched(name, least):
        (tmp_path / name).mkdir()
        budget = Budget(worst / 2, "error", least_share=least)
        return search_file(
            path, tmp_path / name / "q.onnx", feeds(1), trial, OPTIONS, budget, roofline("l4", 64)
        )

    assert searched("just", share - 1e-6).quantize.share_of_flops == pytest.approx(share)
    with pytest.raises(GateError, match=r"1 linears kept high, which leaves 83.3% .* below 83.4%"):
        searched("over", share + 1e-3)
    assert list((tmp_path / "over").iterdir()) == []


def test_kl_equals_torch_and_needs_one_output():
    a, b = torch.randn(3, 700, 11).double(), torch.randn(3, 700, 11).double()
    expected = torch.nn.functional.kl_div(
        b.log_softmax(-1), a.log_softmax(-1), log_target=True, reduction="sum"
    ) / (3 * 700)
    assert distance("kl", [{"y": a}], [{"y": b}]) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(UsageError, match="none of them called logits"):
        distance("kl", [{"y": a, "z": a}], [{"y": b, "z": b}])


def test_the_roofline_is_the_longer_of_two_times():
    board = roofline("l4", 1)
    with pytest.raises(UsageError, match="Known: "):
        roofline("abacus", 1)

    class Linear:
        size_in, size_out = 4096, 1024

    size = 4096 * 1024
    moved = size + 4096 + 2 * 1024  # one row: memory bound
    assert board.seconds(Linear, "fp8") == pytest.approx(moved / board.gpu.bandwidth)
    many = roofline("l4", 100_000)
    assert many.seconds(Linear, "fp8") == pytest.approx(2e5 * size / many.gpu.peak("fp8_e4m3"))
    assert many.seconds(Linear, "fp16") == pytest.approx(2e5 * size / many.gpu.peak("fp16"))
