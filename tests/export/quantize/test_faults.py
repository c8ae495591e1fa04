"""Ranges without a scale, numbers that are none, scales too small for their type: refused by name, nothing left."""

import shutil

import numpy as np
import pytest
import torch
from quantize_graphs import LINEAR, numbers, relative, saved

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model

MASKED = """g (float[b, 4] x) => (float[b, 3] y) { z = Add(x, mask) y = MatMul(z, w) }"""


@pytest.mark.parametrize("observer", ["amax", "percentile", "mse"])
def test_a_mask_of_minus_infinity_has_no_scale(tmp_path, observer):
    mask = np.array([0, 0, 0, -np.inf], np.float32)
    source = saved(tmp_path, MASKED, {"w": numbers(4, 3).numpy(), "mask": mask})
    with pytest.raises(UsageError, match=r"'z'.*infinity"):
        quantize_file(
            source, tmp_path / "q.onnx", [{"x": numbers(8, 4)}], QuantizeOptions(observer=observer)
        )
    assert [p.name for p in tmp_path.iterdir()] == ["source.onnx"]


def test_a_constant_zero_input_is_refused_by_name(tmp_path):
    source = saved(tmp_path, LINEAR, {"w": numbers(4, 3).numpy()})
    with pytest.raises(UsageError, match=r"'x'.*only zeros"):
        quantize_file(source, tmp_path / "q.onnx", [{"x": torch.zeros(8, 4)}])


def test_a_channel_of_zeros_stays_zero(tmp_path):
    w = numbers(4, 3).numpy()
    w[:, 1] = 0
    source = saved(tmp_path, LINEAR, {"w": w})
    feeds = {"x": numbers(64, 4, seed=2)}
    quantize_file(source, tmp_path / "q.onnx", [feeds])
    found = TypedEvaluator(tmp_path / "q.onnx").run(feeds).outputs["y"]
    assert (found[:, 1] == 0).all() and found.isfinite().all()


def test_a_weight_with_nan_is_refused(tmp_path):
    w = numbers(4, 3).numpy()
    w[0, 0] = np.nan
    with pytest.raises(ArtefactError, match="'w'"):
        quantize_file(
            saved(tmp_path, LINEAR, {"w": w}), tmp_path / "q.onnx", [{"x": numbers(8, 4)}]
        )


def test_activations_need_feeds(tmp_path):
    source = saved(tmp_path, LINEAR, {"w": numbers(4, 3).numpy()})
    with pytest.raises(UsageError, match="no calibration feeds"):
        quantize_file(source, tmp_path / "q.onnx", [])


@pytest.mark.parametrize("factor", [1.0, 2e-4])
def test_scales_in_fp16_are_chosen_among_those_that_fp16_holds(tmp_path, factor):
    """At opset 21 a scale has the type of the values. With tiny numbers a scale rounded afterwards would be off by percents."""
    half = "g (float16[b, 4] x) => (float16[b, 3] y) { y = MatMul(x, w) }"
    w = (numbers(4, 3) * factor).half().numpy()
    source = saved(tmp_path, half, {"w": w}, opset=22)
    feeds = {"x": numbers(64, 4, seed=2).half()}
    model = load_model(source)
    model.opset_imports[""] = 22
    report = quantize_file(source, tmp_path / "q.onnx", [feeds])
    stored = load_model(tmp_path / "q.onnx")
    scales = stored.graph.initializers["w/quantized/scale"].const_value.numpy()
    assert (scales > 0).all() and report.linears[0].weight_scales[0] == float(scales.min())
    found = TypedEvaluator(tmp_path / "q.onnx").run(feeds).outputs["y"]
    assert relative(found, feeds["x"].double() @ torch.from_numpy(w).double()) < 0.06


def test_nothing_is_left_when_the_output_cannot_be_written(tmp_path):
    source = saved(tmp_path, LINEAR, {"w": numbers(4, 3).numpy()})
    shutil.copy(source, tmp_path / "file")
    with pytest.raises(UsageError, match="cannot write"):
        quantize_file(source, tmp_path / "file" / "q.onnx", [{"x": numbers(8, 4)}])
