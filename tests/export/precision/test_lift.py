"""Weights and values that FP16 would hold as subnormals are brought up exactly, kept wide, or named."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions, Ranges, measure_ranges, typed_model
from blockforge.export.precision.subnormal import LOST, Faint

from .chains import spread
from .decoders import INNER, H, Shape, Writer, decoder, model_of
from .runs import FP16, UNIT, exact, in_onnxruntime, prepared, relative, repaired, typed
from .test_repair import IDS

X = {"x": torch.randn(2, 6, H, generator=torch.Generator().manual_seed(1))}
NOISE = 6 * UNIT[DType.FP16]


def graph(build, factors, sequence=6, outputs=()) -> onnx.ModelProto:
    """x [B, 6, 16] -> build -> y [B, 6, 16], with weights in `factors` that many times as large."""
    w = Writer(Shape())
    y = w.op("Identity", build(w), name="y")
    shrink(w.weights, factors)
    x = ("x", TensorProto.FLOAT, ["batch", sequence, H])
    return model_of(w, [x], [(y, H), *outputs], sequence)


def shrink(tensors, factors):
    for tensor in tensors:
        if tensor.name in factors:
            numbers = numpy_helper.to_array(tensor) * np.float32(factors[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def alone(w):
    return w.linear(spread(w), "up", H, H)


def with_bias(w):
    return w.op("Add", alone(w), w.weight("up.bias", H))


def gemm(w):
    x = w.op("Reshape", spread(w), w.number([-1, H], np.int64))
    y = w.op("Gemm", x, w.weight("up", H, H), w.weight("up.bias", H), transB=1)
    return w.op("Reshape", y, w.number([-1, 6, H], np.int64))


def gemm_and_sum(w):
    return w.op("Add", "x", gemm(w))


def both(w):
    """Each is only added, and so is the sum."""
    x = spread(w)
    y = w.op("Add", w.linear(x, "up", H, H), w.linear(x, "more", H, H))
    return w.op("Add", y, w.number(0.0))


def turned(w):
    return w.op("MatMul", spread(w), w.op("Transpose", w.weight("up", H, H), perm=[1, 0]))


def relu(w):
    return w.linear(w.op("Relu", w.linear(spread(w), "up", H, INNER)), "down", INNER, H)


def normed(w):
    return w.norm(alone(w), "norm")


def norm_scale(w):
    return w.linear(w.norm(spread(w), "norm"), "down", H, H)


def summed(w):
    return w.norm(w.op("Add", "x", alone(w)), "norm")


def layer_scale(w):
    y = w.op("Mul", w.linear(spread(w), "up", H, H), w.weight("scale", H))
    return w.op("Add", "x", y)


def gated(w):
    x = spread(w)
    gate, up = (w.linear(x, name, H, INNER) for name in ("gate", "up"))
    return w.linear(w.op("Mul", w.op("Mul", gate, w.op("Sigmoid", gate)), up), "down", INNER, H)


def attended(w):
    x = spread(w)
    q, k, v = (w.linear(x, name, H, H) for name in "qkv")
    return w.linear(w.op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2), "o", H, H)


def scaled_scores(w):
    x = spread(w)
    q, k, v = (w.linear(x, name, H, H) for name in "qkv")
    y = w.op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2, scale=1e6)
    return w.linear(y, "o", H, H)


TINY = 1e-7
SMALL = 1e-4  # a value at its size is subnormal for the most part, a weight is not
LIFTED = {  # build, factors: what undoes the factor is a Mul behind, or at the output
    "to an output": (alone, {"up.weight": TINY}),
    "far below": (alone, {"up.weight": 1e-9}),
    "below the smallest power of two": (alone, {"up.weight": 1e-12}),
    "with a bias": (with_bias, {"up.weight": TINY, "up.bias": TINY}),
    "gemm": (gemm, {"up": TINY, "up.bias": TINY}),
    "gemm into a sum": (gemm_and_sum, {"up": TINY, "up.bias": TINY}),
    "transposed": (turned, {"up": TINY}),
    "a norm's scale": (norm_scale, {"norm.weight": TINY}),
    "relu": (relu, {"up.weight": TINY}),
    "into a sum": (summed, {"up.weight": TINY}),
    "into a sum, far below": (summed, {"up.weight": 1e-12}),
    "layer scale": (layer_scale, {"scale": 1e-5}),
    "gate": (gated, {"gate.weight": 1e-5}),
    "down": (gated, {"down.weight": TINY}),
    "sum of two": (both, {"up.weight": TINY, "more.weight": 1e-8}),
    "query": (attended, {"q.weight": 1e-5}),
    "values": (attended, {"v.weight": TINY}),
}
NO_NODE = {  # undone in a neighbour
    "relu": (relu, {"up.weight": TINY, "down.weight": 1e4}),
    "norm": (normed, {"up.weight": TINY}),
    "a norm's scale": (norm_scale, {"norm.weight": TINY, "down.weight": 1e4}),
    "up": (gated, {"up.weight": TINY, "down.weight": 1e4}),
    "values": (attended, {"v.weight": TINY, "o.weight": 1e4}),
    "query": (scaled_scores, {"q.weight": TINY}),
    "values, not weights": (relu, {"first.weight": SMALL, "up.weight": SMALL, "down.weight": 1e4}),
}


@pytest.mark.parametrize("name", [*LIFTED, *(f"{n}: no node" for n in NO_NODE)])
def test_a_faint_weight_grows_exactly_and_is_undone(name):
    free = name.endswith(": no node")
    build, factors = NO_NODE[name.removesuffix(": no node")] if free else LIFTED[name]
    proto = graph(build, factors)
    before, after, report = repaired(proto, X)
    for old, new in zip(in_onnxruntime(before, X), in_onnxruntime(after, X), strict=True):
        assert torch.equal(old, new)
    faint = next(iter(factors))
    assert min(report.scaled.values()) < 0
    for key, bits in report.scaled.items():
        stored = after.graph.initializers[key].const_value.numpy() * np.float32(2.0**bits)
        assert np.array_equal(stored, before.graph.initializers[key].const_value.numpy())
    if free:
        assert report.inserted == {} and len(before.graph) == len(after.graph)
    _, report, run = typed(proto, X)
    assert run.overflow == () and report.notes == []
    assert {"MatMul", "Gemm"}.isdisjoint(w.operator for w in report.islands)
    truth = exact(proto, X)["y"]
    assert relative(run.outputs["y"], truth) < NOISE
    _, bare, off = typed(proto, X, PrecisionOptions(DType.FP16, repair=False))
    assert bare.scaled == {} and relative(off.outputs["y"], truth) < NOISE  # by islands
    assert any("subnormals" in w.reason or "below" in w.reason for w in bare.islands), faint


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_and_a_head(tied):
    """A table that the head reads turned over: both readers get the factor back."""
    proto = decoder(Shape(tied=tied, norm="rms"))
    shrink(proto.graph.initializer, {"embed.weight": TINY, "head.weight": TINY})
    before, after, report = repaired(proto, IDS)
    for old, new in zip(in_onnxruntime(before, IDS), in_onnxruntime(after, IDS), strict=True):
        assert torch.equal(old, new)
    assert report.scaled["embed.weight"] < 0 and (tied or report.scaled["head.weight"] < 0)
    _, report, run = typed(proto, IDS)
    assert relative(run.outputs["logits"], exact(proto, IDS)["logits"]) < 2 * NOISE


def test_a_weight_that_a_repair_pushed_down_is_brought_up_again():
    """A residual stream at 1e9 is held 2^-16 times its size, and so is each weight that writes it."""
    proto = graph(lambda w: w.norm(w.op("Add", w.linear("x", "large", H, H), alone(w)), "norm"), {"large.weight": 1e9, "up.weight": 1e-2})  # fmt: skip
    before, after, report = repaired(proto, X)
    stored = after.graph.initializers["up.weight"].const_value.numpy()
    source = before.graph.initializers["up.weight"].const_value.numpy()
    assert np.array_equal(stored * np.float32(2.0 ** report.scaled["up.weight"]), source)
    _, report, run = typed(proto, X)
    (stream,) = report.streams
    assert stream.exponent > 10 and report.scaled["up.weight"] < stream.exponent
    assert run.overflow == ()
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < NOISE


def einsum(w):
    y = w.op("Einsum", spread(w), w.weight("up.weight", H, H), equation="bsh,ho->bso")
    return w.op("Add", "x", y)


def test_a_law_that_is_not_known_keeps_the_product_wide():
    proto = graph(einsum, {"up.weight": TINY})
    _, report, run = typed(proto, X)
    (row,) = report.islands
    assert row.operator == "Einsum" and report.scaled == {}
    assert "up.weight would lose" in row.reason and "subnormals" in row.reason
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < NOISE
    _, report, _ = typed(proto, X, PrecisionOptions(DType.FP16, island=DType.BF16))
    assert {w.dtype for w in report.islands} == {"bf16"}


def test_without_calibration_the_product_stays_wide():
    """How large the result may become is not known."""
    proto = graph(alone, {"up.weight": TINY})
    model = prepared(proto)
    report = typed_model(model, Ranges(), FP16)
    assert report.scaled == {} and [w.operator for w in report.islands] == ["MatMul"]


def test_an_output_that_must_be_fp16_is_named_with_what_it_loses():
    proto = graph(alone, {"up.weight": TINY})
    ends = PrecisionOptions(DType.FP16, io="graph")
    (note,) = report_of(proto, ends).notes
    assert note.startswith("y would lose") and "output in fp16" in note
    values = exact(proto, X)["y"].numpy()
    lost = np.square(values - values.astype(np.float16)).sum() / np.square(values).sum()
    assert f"{lost:.2g} of its energy" in note
    assert report_of(graph(alone, {}), ends).notes == []


def report_of(proto, options):
    model = prepared(proto)
    return typed_model(model, measure_ranges(model, [X]), options)


def scattered(w):
    """Half of the numbers, a row and a column are tiny: none of it is much of the weight's energy."""
    y = alone(w)
    (tensor,) = (t for t in w.weights if t.name == "up.weight")
    numbers = numpy_helper.to_array(tensor).copy()
    numbers[w.random.random((H, H)) < 0.5] *= 1e-6
    numbers[2], numbers[:, 5] = 1e-9, 1e-8
    tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    return y


def zeros(w):
    return w.op("Add", "x", alone(w))


def layer_norm(w):
    w.shape = Shape(norm="layer")
    return w.norm(spread(w), "norm")


def spelled_scale(w):
    """A norm that is written out keeps its scale in FP32."""
    w.shape = Shape(norm="spelled_rms")
    return w.op("Add", "x", w.norm(spread(w), "norm"))


@pytest.mark.parametrize(
    ("build", "factors", "options"),
    [
        (scattered, {}, FP16),
        (zeros, {"up.weight": 0.0}, FP16),
        (with_bias, {"up.bias": TINY}, FP16),
        (gemm, {"up.bias": TINY}, FP16),
        (layer_norm, {"norm.bias": TINY}, FP16),
        (spelled_scale, {"norm.weight": TINY}, PrecisionOptions(DType.FP16, fuse=False)),
        (alone, {"up.weight": 3e-4}, FP16),
        (alone, {"up.weight": TINY}, PrecisionOptions(DType.BF16)),
    ],
)
def test_near_misses_stay_as_they_are(build, factors, options):
    _, report, _ = typed(graph(build, factors), X, options)
    assert report.scaled == {} and report.streams == [] and report.inserted == {}
    assert [w for w in report.islands if w.operator != "Identity"] == [] and report.notes == []


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-4, 3e-5, 1e-5, 1e-7, 1e-9, 0.0])
def test_the_lost_share_is_numpys(size):
    numbers = (np.random.default_rng(0).standard_normal(4096) * size).astype(np.float32)
    tiny = np.abs(numbers) < 2.0**-14
    error = np.where(tiny, numbers - numbers.astype(np.float16).astype(np.float64), 0.0)
    energy = np.square(numbers, dtype=np.float64).sum()
    share = np.square(error).sum() / energy if size else 0.0
    tensor = torch.from_numpy(numbers)
    assert Faint.of(tensor).lost == pytest.approx(share, rel=1e-6)
    assert Faint.of_weight(tensor).too_faint == (share > LOST)
    assert Faint.of_weight(tensor).too_faint == (0 < size < 3e-5)
