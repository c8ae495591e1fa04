"""What is a key-value cache and what is none, what is refused, and who may read what is stored."""

import onnx_ir as ir
import pytest
import torch
from cached_decoders import Weights, decoder, e4m3
from decoding import CACHE_ONLY, FP8, Decoding
from engine_graphs import write
from quantize_graphs import model_from

from blockforge.core.errors import UsageError
from blockforge.export.quantize.cache import find_caches
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model

CONCAT = "g (float[b, 2, p, 4] a, float[b, 2, 1, 4] k) => (float[b, 2, t, 4] c) {{ {} }}"
NONE = {
    "along the head": "g (float[b, 2, p, 4] a, float[b, 2, p, 4] k) => (float[b, 2, p, 8] c) { c = Concat<axis = -1>(a, k) }",
    "along the batch": "g (float[b, 2, p, 4] a, float[b, 2, p, 4] k) => (float[d, 2, p, 4] c) { c = Concat<axis = 0>(a, k) }",
    "of three": CONCAT.format("c = Concat<axis = 2>(a, k, k)"),
    "of a computed past": CONCAT.format("n = Neg(a) c = Concat<axis = 2>(n, k)"),
    "not given": CONCAT.format("d = Concat<axis = 2>(a, k) c = Neg(d)"),
    "of integers": "g (int64[b, 2, p, 4] a, int64[b, 2, 1, 4] k) => (int64[b, 2, t, 4] c) { c = Concat<axis = 2>(a, k) }",
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_cache(name):
    assert find_caches(model_from(NONE[name])) == []
    assert len(find_caches(model_from(CONCAT.format("c = Concat<axis = 2>(a, k)")))) == 1


def test_casts_belong_to_the_cache():
    text = CONCAT.format("h = Cast<to = 10>(a) n = Cast<to = 10>(k) d = Concat<axis = 2>(h, n) e = Identity(d) c = Cast<to = 1>(e)")  # fmt: skip
    (cache,) = find_caches(model_from(text))
    assert (cache.past.name, cache.held.name, cache.whole.name, cache.present.name) == ("a", "h", "d", "c")  # fmt: skip


def test_a_graph_without_a_cache_is_refused(tmp_path):
    source = write(decoder("concat", Weights(layers=1)), tmp_path, "fp32.onnx")
    model = load_model(source)
    for _ in range(2):
        model.graph.outputs.pop()
    ir.save(model, tmp_path / "none.onnx")
    with pytest.raises(UsageError, match=r"kv_cache.*past_key_values\.0\.key"):
        quantize_file(tmp_path / "none.onnx", tmp_path / "x.onnx", [], CACHE_ONLY)
    assert not (tmp_path / "x.onnx").exists()


def test_a_cache_needs_feeds_and_is_recognised_when_done(tmp_path):
    source = write(decoder("concat", Weights(layers=1)), tmp_path, "fp32.onnx")
    feeds = Decoding(source, "concat", 1, torch.float32, steps=4).feeds
    assert len(quantize_file(source, tmp_path / "fp8.onnx", feeds, CACHE_ONLY).caches) == 2
    report = quantize_file(tmp_path / "fp8.onnx", tmp_path / "again.onnx", [], CACHE_ONLY)
    assert report.caches == ()
    weights_only = QuantizeOptions(format="fp8-weights", rounding="nearest", kv_cache=True)
    with pytest.raises(UsageError, match="no calibration feeds"):
        quantize_file(source, tmp_path / "x.onnx", [], weights_only)


def test_a_range_that_fp16_cannot_give_back_is_refused(tmp_path):
    """Codes step by 2^-9 scales, FP16 by 2^-24: below a scale of 2^-15 half of the smallest are lost. BF16 keeps them."""
    text = CONCAT.format("c = Concat<axis = 2>(a, k)")
    for kind, dtype, fits in (
        ("float16", torch.float16, False),
        ("bfloat16", torch.bfloat16, True),
    ):
        model = model_from(text.replace("float[", f"{kind}["))
        ir.save(model, tmp_path / "m.onnx")
        small = torch.full((1, 2, 1, 4), 0.004, dtype=dtype)
        feeds = [{"a": small, "k": small}]
        if fits:
            quantize_file(tmp_path / "m.onnx", tmp_path / "x.onnx", feeds, CACHE_ONLY)
            continue
        with pytest.raises(UsageError, match="do not survive fp16"):
            quantize_file(tmp_path / "m.onnx", tmp_path / "x.onnx", feeds, CACHE_ONLY)
    with pytest.raises(UsageError, match="only zeros"):
        feeds = [{"a": small * 0, "k": small * 0}]
        quantize_file(tmp_path / "m.onnx", tmp_path / "y.onnx", feeds, CACHE_ONLY)


def test_what_is_stored_may_be_read_by_anything(tmp_path):
    """Keys that are scaled before their product: no activation of products alone, and still a cache."""
    text = CONCAT.replace("c) {{", "c, float[b, 2, t, 4] y) {{").format("c = Concat<axis = 2>(a, k) y = Mul(c, c)")  # fmt: skip
    ir.save(model_from(text), tmp_path / "m.onnx")
    x = torch.linspace(-3, 3, 8).reshape(1, 2, 1, 4)
    report = quantize_file(tmp_path / "m.onnx", tmp_path / "x.onnx", [{"a": x, "k": x}], CACHE_ONLY)
    scale = report.caches[0].scale
    codes = torch.tensor(e4m3(x, scale) / scale).to(FP8)
    found = TypedEvaluator(tmp_path / "x.onnx").run({"a": codes, "k": x}).outputs
    assert torch.equal(found["c"].float(), torch.cat([codes, codes], 2).float())
    assert torch.allclose(found["y"], (found["c"].float() * scale) ** 2, rtol=1e-6)


def test_attention_beside_a_cache_quantises_the_query_alone(tmp_path):
    source = write(decoder("attention", Weights(layers=1)), tmp_path, "fp32.onnx")
    feeds = Decoding(source, "attention", 1, torch.float32, steps=8).feeds
    options = QuantizeOptions(rounding="nearest", kv_cache=True, attention=True)
    report = quantize_file(source, tmp_path / "fp8.onnx", feeds, options)
    (node,) = (n for n in load_model(tmp_path / "fp8.onnx").graph if n.op_type == "Attention")
    read = [v.producer() for v in node.inputs if v is not None]
    assert [n.op_type for n in read] == ["DequantizeLinear"] * 5
    assert "layers.0/q4" in report.calibration.values and "layers.0/k4" not in report.calibration.values  # fmt: skip
