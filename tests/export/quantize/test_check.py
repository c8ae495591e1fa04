"""The faults that quantisers have been seen to make, planted: each is named; a sound graph passes."""

import numpy as np
import pytest
from quantize_graphs import model_from, numbers

from blockforge.core.errors import UsageError
from blockforge.export.quantize.check import check_quantized
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.io import save_model

W = {"w": numbers(4, 4).numpy()}
PAIR = "q = QuantizeLinear <output_dtype = 17> (x, s) d = DequantizeLinear(q, s) "
LINEAR = f"g (float[b, 4] x) => (float[b, 4] y) {{ {PAIR} y = MatMul(d, w) }}"
MOVED = f"g (float[b, 4] x) => (float[b, 4] y) {{ {PAIR} n = Reshape(d, r) y = MatMul(n, w) }}"
RESIDUAL = f"g (float[b, 4] x) => (float[b, 4] y) {{ {PAIR} m = MatMul(d, w) y = Add(d, m) }}"
NORM = f"g (float[b, 4] x) => (float[b, 4] y) {{ {PAIR} n = Softmax(d) y = MatMul(n, w) }}"
MASK = """g (float[1, 2, 3, 8] q, float[1, 2, 3, 8] k, float[3, 3] x) => (float[1, 2, 3, 8] y) {
    c = QuantizeLinear <output_dtype = 17> (x, s) d = DequantizeLinear(c, s) y = Attention(q, k, k, d) }"""
KEYS = """g (float[1, 2, 3, 8] q, float[1, 2, 3, 8] x) => (float[1, 2, 3, 8] y) {
    c = QuantizeLinear <output_dtype = 17> (x, s) d = DequantizeLinear(c, s) y = Attention(q, d, d) }"""


def scaled(scale):
    return {"s": np.float32(scale)}


@pytest.mark.parametrize(
    ("text", "weights"),
    [(LINEAR, W), (MOVED, W | {"r": np.array([-1, 4])}), (KEYS, {})],
)
def test_a_sound_graph_passes(text, weights):
    check_quantized(model_from(text, weights | scaled(0.1)))


@pytest.mark.parametrize(("text", "culprit"), [(RESIDUAL, "Add"), (NORM, "Softmax")])
def test_only_products_read_quantised_values(text, culprit):
    with pytest.raises(UsageError, match=culprit) as caught:
        check_quantized(model_from(text, W | scaled(0.1)))
    assert "'x'" in str(caught.value)


def test_a_quantised_mask_is_named():
    with pytest.raises(UsageError, match="mask of"):
        check_quantized(model_from(MASK, scaled(0.1)))


@pytest.mark.parametrize("scale", [0.0, -0.1, np.inf, np.nan])
def test_a_scale_that_is_none_is_named(scale):
    with pytest.raises(UsageError, match="scale of QuantizeLinear"):
        check_quantized(model_from(LINEAR, W | scaled(scale)))


def test_one_bad_channel_is_enough():
    text = "g (float[b, 4] x) => (float[b, 3] y) { d = DequantizeLinear <axis = 1> (c, s) y = MatMul(x, d) }"
    weights = {"c": np.ones((4, 3), np.int8), "s": np.array([1, 0, 1], np.float32)}
    with pytest.raises(UsageError, match=r"DequantizeLinear.*0\.0"):
        check_quantized(model_from(text, weights))


def test_a_file_with_a_fault_is_refused_before_anything_is_written(tmp_path):
    save_model(model_from(RESIDUAL, W | scaled(0.1)), tmp_path / "bad.onnx")
    with pytest.raises(UsageError, match="Add"):
        quantize_file(tmp_path / "bad.onnx", tmp_path / "q.onnx", [{"x": numbers(2, 4)}])
    assert [p.name for p in tmp_path.iterdir()] == ["bad.onnx"]
