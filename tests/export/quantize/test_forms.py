"""Linears in every form: one by hand, layouts, biases, shared and tied weights, exports of others."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from quantize_graphs import CORPUS, LINEAR, numbers, relative, saved

from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model


def fp8(x):
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def test_one_linear_by_hand(tmp_path):
    """amax scales, nearest rounding: the file's product is that of ml_dtypes' codes in float64."""
    w, x = numbers(4, 3, seed=1).numpy(), numbers(64, 4, seed=2)
    source = saved(tmp_path, LINEAR, {"w": w})
    options = QuantizeOptions(observer="amax", rounding="nearest")
    report = quantize_file(source, tmp_path / "q.onnx", [{"x": x}], options)
    model = load_model(tmp_path / "q.onnx")
    scales = next(
        v.const_value.numpy()
        for k, v in model.graph.initializers.items()
        if k == "w/quantized/scale"
    )
    scale = np.float32(x.abs().max().item() / 448)
    assert report.linears[0].scale == scale and scales.shape == (3,)
    expected = (fp8(x.numpy() / scale) * scale) @ (fp8(w / scales) * scales)
    found = TypedEvaluator(tmp_path / "q.onnx").run({"x": x}).outputs["y"]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    best = np.abs(w).max(0) / 448  # no scale is far from amax's: one octave up, a quarter down
    assert ((scales >= 0.8 * best) & (scales <= 2 * best)).all()


@pytest.mark.parametrize(
    "text",
    [
        "y = Gemm <transB = 1> (x, w, c)",
        "t = Transpose <perm = [1, 0]> (w) p = MatMul(x, t) y = Add(p, c)",
    ],
)
def test_layouts_and_biases(tmp_path, text):
    weights = {"w": numbers(3, 4, seed=1).numpy(), "c": numbers(3, seed=5).numpy()}
    source = saved(tmp_path, f"g (float[b, 4] x) => (float[b, 3] y) {{ {text} }}", weights)
    feeds = {"x": numbers(64, 4, seed=2)}
    quantize_file(source, tmp_path / "q.onnx", [feeds])
    found = TypedEvaluator(tmp_path / "q.onnx").run(feeds).outputs["y"]
    expected = feeds["x"].double() @ torch.from_numpy(weights["w"]).double().T + torch.from_numpy(
        weights["c"]
    )
    assert relative(found, expected) < 0.05
    assert not [n for n in load_model(tmp_path / "q.onnx").graph if n.op_type == "Transpose"]


SHARED = "g (float[b, 4] x) => (float[b, 4] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }"
TIED = """g (int64[b, s] ids) => (float[b, s, 8] logits) {
    x = Gather(e, ids) h = MatMul(x, w) t = Transpose <perm = [1, 0]> (e) logits = MatMul(h, t) }"""


def test_a_weight_that_two_linears_share_is_stored_once(tmp_path):
    source = saved(tmp_path, SHARED, {"w": numbers(4, 4).numpy()})
    report = quantize_file(source, tmp_path / "q.onnx", [{"x": numbers(64, 4, seed=2)}])
    stored = [
        v for v in load_model(tmp_path / "q.onnx").graph.initializers.values() if len(v.shape) == 2
    ]
    assert len(stored) == 1 and len(report.quantized) == 2


@pytest.mark.parametrize("head", [False, True])
def test_a_tied_embedding_keeps_its_precision(tmp_path, head):
    weights = {"e": numbers(8, 4).numpy(), "w": numbers(4, 4, seed=1).numpy()}
    source = saved(tmp_path, TIED, weights)
    feeds = {"ids": torch.arange(8).reshape(2, 4)}
    quantize_file(source, tmp_path / "q.onnx", [feeds], QuantizeOptions(head=head))
    model = load_model(tmp_path / "q.onnx")
    np.testing.assert_array_equal(model.graph.initializers["e"].const_value.numpy(), weights["e"])
    logits = next(
        n for n in model.graph if n.op_type == "MatMul" and n.outputs[0].is_graph_output()
    )
    assert (logits.inputs[1].producer().op_type == "DequantizeLinear") is head
    x = torch.from_numpy(weights["e"])[feeds["ids"]] @ torch.from_numpy(weights["w"])
    expected = x @ torch.from_numpy(weights["e"]).T
    assert (
        relative(TypedEvaluator(tmp_path / "q.onnx").run(feeds).outputs["logits"], expected) < 0.08
    )


@pytest.mark.parametrize(
    "name", ["llama__sdpa__d18__fp16", "gpt2__sdpa__ts17__fp32", "bert__sdpa__d23__fp32", "qwen3__sdpa__d23__bf16"]
)  # fmt: skip
def test_exports_of_hugging_face(name, tmp_path):
    """Older opsets are raised, and all linears become FP8."""
    source = CORPUS / f"{name}.onnx"
    if not source.exists():
        pytest.skip("BLOCKFORGE_CORPUS names no folder of exported graphs")
    model = load_model(source)
    feeds = {}
    for value in model.graph.inputs:
        shape = [d if isinstance(d, int) else 2 + 5 * i for i, d in enumerate(value.shape)]
        feeds[value.name] = torch.ones(shape, dtype=torch.int64)
        if "mask" not in value.name:
            feeds[value.name] = torch.arange(feeds[value.name].numel()).reshape(shape) % 50
    report = quantize_file(source, tmp_path / "q.onnx", [feeds])
    assert report.quantized and all("head" in x.reason for x in report.linears if x.reason)
    (before,) = list(TypedEvaluator(source).run(feeds).outputs.values())[:1]
    (after,) = list(TypedEvaluator(tmp_path / "q.onnx").run(feeds).outputs.values())[:1]
    assert relative(after, before) < 0.3  # small random weights, whose logits nearly cancel
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=True)
