"""Key-value caches in FP8, decoded step by step against float64, with every form of cache that decoders export."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from cached_decoders import (
    HEADS,
    KV_HEADS,
    SIZE,
    Oracle,
    Weights,
    decoder,
    e4m3,
    past_name,
    present_name,
)
from decoding import CACHE_ONLY, FP8, PARTS, STEPS, Decoding, empty, feed
from engine_graphs import write

from blockforge.core.dtypes import DType
from blockforge.export.calibration.record import CalibrationRecord, ValueRecord
from blockforge.export.precision import PrecisionOptions
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import Origin, quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.graph.spec import check_graph
from blockforge.quantization import quantize_graph

FORMS = ("scatter", "concat", "attention")


def scales_of(report):
    return {c.past.removeprefix("past_key_values."): c.scale for c in report.caches}


@pytest.fixture(scope="module", params=FORMS)
def case(request, tmp_path_factory):
    """(form, weights, the FP32 graph's decoding, its FP8-cache file, the report)."""
    folder, weights = tmp_path_factory.mktemp(request.param), Weights()
    source = write(decoder(request.param, weights), folder, "fp32.onnx")
    plain = Decoding(source, request.param, weights.layers, torch.float32)
    report = quantize_file(source, folder / "fp8.onnx", plain.feeds[::5], CACHE_ONLY)
    return request.param, weights, plain, folder / "fp8.onnx", report


def test_the_graph_decodes_as_float64_does(case):
    """FP32 against float64: 64 products a sum, four sums deep; the two answers choose the same tokens."""
    _, weights, plain, _, _ = case
    oracle = Oracle(weights)
    true = np.stack([oracle.step(t, i) for i, t in enumerate(plain.tokens)])
    assert len(set(plain.tokens)) > 5 and np.abs(plain.logits - true).max() < 64 * 4 * 2**-24 * 4
    assert (plain.logits.argmax(1) == true.argmax(1)).all()


def test_inputs_and_outputs_are_codes_and_the_report_says_so(case):
    _, weights, plain, path, report = case
    model = load_model(path)
    check_graph(model)
    edges = {str(v.name): v.dtype for v in (*model.graph.inputs, *model.graph.outputs)}
    stored = [
        n(i, p) for n in (past_name, present_name) for i in range(weights.layers) for p in PARTS
    ]
    assert all(edges.pop(name) == ir.DataType.FLOAT8E4M3FN for name in stored)
    assert ir.DataType.FLOAT8E4M3FN not in edges.values()
    assert [(c.past, c.present) for c in report.caches] == [(past_name(i, p), present_name(i, p)) for i in range(weights.layers) for p in PARTS]  # fmt: skip
    whole = plain.caches[range(STEPS)[::5][-1]]  # at the last step that calibration saw
    assert all(c.amax == whole[c.past].abs().max() for c in report.caches)
    values = report.calibration.values
    assert all(values[c.past].scale == c.scale == np.float32(c.amax / 448) for c in report.caches)


def test_each_step_is_what_float64_with_an_fp8_cache_gives(case):
    """On the tokens of the unquantised decoder: the codes of every position to the bit, the logits to FP32's noise."""
    form, weights, plain, path, report = case
    eight = Decoding(path, form, weights.layers, tokens=plain.tokens)
    oracle = Oracle(weights, scales_of(report))
    true = np.stack([oracle.step(t, i) for i, t in enumerate(plain.tokens)])
    assert np.abs(eight.logits - true).max() < 64 * 4 * 2**-24 * 4
    assert np.abs(eight.logits - plain.logits).max() > 1e-3
    for record in report.caches:
        codes = eight.caches[-1][record.past].double().numpy()[0, :, :STEPS]
        wanted = np.stack(oracle.cache[record.past.removeprefix("past_key_values.")])
        assert np.array_equal(codes * record.scale, wanted.reshape(STEPS, KV_HEADS, SIZE).transpose(1, 0, 2))  # fmt: skip


def test_greedy_tokens_stay_the_same(case):
    """Free running, each on its own tokens; where they part, the two likeliest were nearer than the cache's error."""
    form, weights, plain, path, _ = case
    eight = Decoding(path, form, weights.layers)
    same = next(
        (i for i, (a, b) in enumerate(zip(plain.tokens, eight.tokens, strict=True)) if a != b),
        STEPS,
    )
    assert same > STEPS // 2
    if same < STEPS:
        top = np.sort(plain.logits[same - 1])[-2:]
        error = np.abs(plain.logits[same - 1] - eight.logits[same - 1]).max()
        assert top[1] - top[0] <= 2 * error


@pytest.mark.parametrize("form", FORMS)
def test_the_error_stays_within_what_rounding_k_and_v_can_do(form, tmp_path):
    """One layer, whose logits are (h + context Wo) Wh. Rounding moves a number by at most half a step of E4M3: d = 2^-4 of
    it, or 2^-10 scales; as a uniform error that is a variance below d^2 / 3. To first order

        d context = sum p_t ds_t (v_t - context) + sum p_t dv_t        ds_t = q dk_t / sqrt(D)

    and independent errors add their variances. Heads of one group share k and v: their sum has at most as many times
    the variance as there are heads. Six deviations, and 1e-5 for FP32.
    """
    weights = Weights(layers=1, seed=3)
    source = write(decoder(form, weights), tmp_path, "fp32.onnx")
    plain = Decoding(source, form, 1, torch.float32)
    report = quantize_file(source, tmp_path / "fp8.onnx", plain.feeds, CACHE_ONLY)
    eight = Decoding(tmp_path / "fp8.onnx", form, 1, tokens=plain.tokens)
    oracle, scale = Oracle(weights), scales_of(report)
    tail_NDV = (oracle.w["layers.0.o"] @ oracle.w["head"]).reshape(HEADS, SIZE, -1)
    used = []
    for i, token in enumerate(plain.tokens):
        oracle.step(token, i)
        q, k, v, context = oracle.seen[-1]
        vk, vv = (
            np.maximum(np.abs(x) * 2**-4, scale[f"0.{p}"] * 2**-10) ** 2 / 3
            for x, p in ((k, "key"), (v, "value"))
        )
        scores = np.einsum("nd,tnd->nt", q, k) * SIZE**-0.5
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        from_k = p**2 * np.einsum("nd,tnd->nt", q**2, vk) / SIZE
        pull = np.einsum("tnd,ndv->tnv", v - context, tail_NDV) ** 2
        variance = np.einsum("nt,tnv->v", from_k, pull)
        variance += np.einsum("nt,tnd,ndv->v", p**2, vv, tail_NDV**2)
        bound = 6 * np.sqrt(HEADS // KV_HEADS * variance) + 1e-5
        error = np.abs(eight.logits[i] - plain.logits[i])
        assert (error <= bound).all()
        used.append((error / bound).max())
    assert max(used) > 0.1 and bound.max() < 0.1 * np.abs(plain.logits).max()  # it says something


@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_decodes_the_same(form, tmp_path):
    weights = Weights(layers=1)
    source = write(decoder(form, weights), tmp_path, "fp32.onnx")
    plain = Decoding(source, form, 1, torch.float32, steps=8)
    quantize_file(source, tmp_path / "fp8.onnx", plain.feeds, CACHE_ONLY)
    eight = Decoding(tmp_path / "fp8.onnx", form, 1, tokens=plain.tokens, steps=8)
    session = onnxruntime.InferenceSession(
        tmp_path / "fp8.onnx", providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    stored = {k: v.view(torch.uint8).numpy() for k, v in empty(form, 1, FP8).items()}
    for i, token in enumerate(plain.tokens):
        fed = {k: value(v.numpy()) for k, v in feed(form, token, i, {}).items()}
        fed |= {k: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(v, 17) for k, v in stored.items()}  # fmt: skip
        found = dict(zip(names, session.run_with_ort_values(names, fed), strict=True))
        assert np.abs(found["logits"].numpy()[0, 0] - eight.logits[i]).max() < 1e-5
        stored = {past_name(0, p): found[present_name(0, p)].numpy() for p in PARTS}  # uint8
    ours = {k: v.view(torch.uint8).numpy() for k, v in eight.caches[-1].items()}
    assert all(np.array_equal(stored[k], ours[k]) for k in ours)


@pytest.mark.parametrize(
    ("form", "base", "io"),
    [
        ("scatter", DType.FP16, "keep"),
        ("concat", DType.FP16, "keep"),
        ("concat", DType.FP16, "graph"),
        ("attention", DType.BF16, "keep"),
    ],
)
def test_what_is_written_never_changes(form, base, io, tmp_path):
    """In 16 bits, linears in FP8 too: the codes of a position are those of the step that wrote it, 24 steps later."""
    weights = Weights(layers=1)
    source = write(decoder(form, weights), tmp_path, "fp32.onnx")
    plain = Decoding(source, form, 1, torch.float32, steps=24)
    options = QuantizeOptions(rounding="nearest", kv_cache=True)
    outcome = quantize_graph(
        source, tmp_path / "fp8.onnx", plain.feeds[4::6], typing=PrecisionOptions(base, io=io), quantization=options
    )  # fmt: skip
    assert len(outcome.quantization.caches) == 2 and len(outcome.quantization.quantized) == 2
    operators = [n.op_type for n in load_model(tmp_path / "fp8.onnx").graph]
    edges = 1 if io == "keep" else 0  # the cast of the logits: none of a cache is left
    assert operators.count("Cast") == edges
    eight = Decoding(tmp_path / "fp8.onnx", form, 1, tokens=plain.tokens, steps=24)
    for name in eight.caches[0]:
        for step, caches in enumerate(eight.caches):
            first = eight.caches[step][name][:, :, step].view(torch.uint8)
            last = eight.caches[-1][name][:, :, step].view(torch.uint8)
            assert torch.equal(first, last) and caches[name].dtype == FP8
    error = np.abs(eight.logits - plain.logits).max() / np.abs(plain.logits).max()
    assert 0.001 < error < 0.2


def test_beyond_the_scale_it_saturates(tmp_path):
    """A scale 16 times too small: the codes end at 448, as float64 says, and no logit is NaN."""
    weights = Weights(layers=1)
    source = write(decoder("concat", weights), tmp_path, "fp32.onnx")
    plain = Decoding(source, "concat", 1, torch.float32, steps=8)
    seen = quantize_file(source, tmp_path / "x.onnx", plain.feeds, CACHE_ONLY).calibration
    small = {n: ValueRecord(amax=v.amax, scale=float(np.float32(v.scale / 16)), observer="by hand") for n, v in seen.values.items()}  # fmt: skip
    known = Origin(known=CalibrationRecord(values=small))
    report = quantize_file(source, tmp_path / "fp8.onnx", plain.feeds, CACHE_ONLY, origin=known)
    eight = Decoding(tmp_path / "fp8.onnx", "concat", 1, tokens=plain.tokens, steps=8)
    oracle = Oracle(weights, scales_of(report))
    true = np.stack([oracle.step(t, i) for i, t in enumerate(plain.tokens)])
    assert np.abs(eight.logits - true).max() < 1e-4
    codes = eight.caches[-1][past_name(0, "key")].float()
    assert codes.abs().max() == 448 and (codes.abs() == 448).float().mean() > 0.2


def test_linears_are_calibrated_on_what_the_cache_gives_back(tmp_path):
    """o_proj reads the context of rounded keys and values: its range is that of the written graph on the same feeds."""
    source = write(decoder("concat", Weights(layers=1)), tmp_path, "fp32.onnx")
    feeds = Decoding(source, "concat", 1, torch.float32, steps=9).feeds[4::4]
    options = QuantizeOptions(rounding="nearest", kv_cache=True)
    report = quantize_file(source, tmp_path / "fp8.onnx", feeds, options)
    scales = {c.past: c.scale for c in report.caches}
    eight = [
        {k: torch.tensor(e4m3(v, scales[k]) / scales[k]).to(FP8) if k in scales else v for k, v in f.items()} for f in feeds
    ]  # fmt: skip
    evaluator = TypedEvaluator(tmp_path / "fp8.onnx")
    seen = [evaluator.run(f, keep=["layers.0/flat"]).kept["layers.0/flat"] for f in eight]
    amax = report.calibration.values["layers.0/flat"].amax
    assert amax == pytest.approx(max(float(x.abs().max()) for x in seen), rel=1e-5)


def test_a_cache_that_a_packed_product_writes(tmp_path):
    """k goes from its product straight into the cache, and packing gives that product anew."""
    rng, size = np.random.default_rng(0), 32
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
    g (float[b, s, {size}] x, float[b, c, {size}] past) => (float[b, s, {size}] y, float[b, t, {size}] present) {{
        q = MatMul(x, wq) k = MatMul(x, wk) present = Concat <axis = 1> (past, k)
        kt = Transpose <perm = [0, 2, 1]> (present) scores = MatMul(q, kt) p = Softmax(scores)
        a = MatMul(p, present) y = MatMul(a, wo) }}"""
    model = onnx.parser.parse_model(text)
    for name in ("wq", "wk", "wo"):
        array = rng.standard_normal((size, size)).astype(np.float32) / size**0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "in.onnx")
    shapes = {"x": (2, 4, size), "past": (2, 8, size)}
    feeds = {
        n: torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()
    }
    options = QuantizeOptions(kv_cache=True, rounding="nearest", head=True)
    report = quantize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", [feeds], options)
    assert report.packed == 1 and len(report.caches) == 1
    scale = report.caches[0].scale
    codes = (feeds["past"] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    found = TypedEvaluator(tmp_path / "out.onnx").run({"x": feeds["x"], "past": codes}).outputs
    assert found["present"].dtype == torch.float8_e4m3fn
    plain = TypedEvaluator(tmp_path / "in.onnx").run(feeds).outputs
    for name, given in (("y", found["y"]), ("present", found["present"].float() * scale)):
        lost = (given - plain[name]).norm() / plain[name].norm()
        assert 0 < lost < 0.1, name  # a few roundings of E4M3, 2^-4 each at most
