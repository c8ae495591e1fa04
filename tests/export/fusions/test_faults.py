"""Known faults of exporters: each is mended and reported, and the result is valid and runs."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from blockforge.export.fusions import fuse
from blockforge.export.opset import obstacle

from .equal import fused, largest_difference
from .graphs import graph, norm, operators


def run(model, **feeds):
    """What ONNX Runtime computes."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_a_float32_scale_on_a_16_bit_norm():
    model = graph(
        """norm (float16[b, s, 8] x, float[8] w) => (float16[b, s, 8] y) {
            y = RMSNormalization<axis = -1, epsilon = 0.00001>(x, w)
        }""",
        opset=23,
    )
    after, report = fused(model)
    assert operators(after) == ["Cast", "RMSNormalization", "Cast"]
    assert "its scale is float32" in report.repairs[0]
    assert report.counts["rms"] == 1
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float16)
    w = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    truth = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w
    # one rounding to float16 at the end
    np.testing.assert_allclose(run(after, x=x, w=w), truth, rtol=2**-10)


def test_caches_of_batch_one():
    model = graph(
        """rope (float[b, 2, s, 8] x, float[1, s, 4] c, float[1, s, 4] d) => (float[b, 2, s, 8] y) {
            y = RotaryEmbedding(x, c, d)
        }""",
        opset=23,
    )
    after, report = fused(model)
    assert "batch 1" in report.repairs[0]
    rng = np.random.default_rng(0)
    x, angle = rng.normal(size=(3, 2, 5, 8)), rng.normal(size=(1, 5, 4))
    c, d = np.cos(angle), np.sin(angle)
    a, b = x[..., :4], x[..., 4:]
    truth = np.concatenate([a * c - b * d, b * c + a * d], -1)
    feeds = {k: v.astype(np.float32) for k, v in (("x", x), ("c", c), ("d", d))}
    np.testing.assert_allclose(
        run(after, **feeds), truth, atol=4e-7
    )  # two float32 products may cancel


def test_an_opset_below_the_operators():
    model = norm()
    model.graph.node.append(onnx.helper.make_node("Gelu", ["y"], ["g"], name="gelu"))
    model.graph.output[0].name = "g"
    model.opset_import[0].version = 18  # Gelu came with 20
    after, report = fused(model)
    assert "opset_import said 18, the operators need 20" in report.repairs
    assert operators(after) == ["RMSNormalization", "Gelu"]
    assert after.opset_import[0].version == 23


def test_axes_become_an_input_when_the_opset_is_raised():
    text = """norm (float[b, s, 8] x) => (float[b, s, 8] y, float[b, s, 1] most)
    <float eps = {0.00001}> {
        square = Mul(x, x)
        mean = ReduceMean<axes = [-1]>(square)
        shifted = Add(mean, eps)
        root = Sqrt(shifted)
        y = Div(x, root)
        most = ReduceMax<axes = [-1]>(x)
    }"""
    model = graph(text, opset=17)
    after, report = fused(model)
    assert (report.opset_before, report.opset_after) == (17, 23)
    assert operators(after) == ["RMSNormalization", "ReduceMax"]
    assert largest_difference(model, after) < 1e-7


def test_an_opset_that_cannot_be_raised_keeps_its_operators():
    text = """norm (float[b, s, 8] x, float[1, 1, 4, 4] image, float[1, 2, 2, 2] grid) => (float[b, s, 8] y, float[1, 1, 2, 2] sampled)
    <float eps = {0.00001}> {
        square = Mul(x, x)
        mean = ReduceMean<axes = [-1]>(square)
        shifted = Add(mean, eps)
        root = Sqrt(shifted)
        y = Div(x, root)
        sampled = GridSample(image, grid)
    }"""
    model = graph(text, opset=17)
    assert "GridSample" in (obstacle(ir.from_proto(model), 23) or "")
    after, report = fused(model)
    assert report.opset_after == 17
    assert any("GridSample" in note for note in report.notes)
    assert operators(after) == ["blockforge::RMSNormAsWritten", "GridSample"]
    assert report.counts["rms"] == 1


@pytest.mark.parametrize("opset", [7, 11, 13, 28])
def test_old_and_new_opsets_do_not_crash(opset):
    node = onnx.helper.make_node("Mul", ["x", "x"], ["y"])
    info = [onnx.helper.make_tensor_value_info(n, 1, ["b", 4]) for n in "xy"]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", info[:1], info[1:]),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    loaded = ir.from_proto(model)
    assert not fuse(loaded).fused
    assert ir.to_proto(loaded).graph == ir.to_proto(ir.from_proto(model)).graph
