"""Exact repair: scaled graphs give the same FP32 bits in ONNX Runtime, and fit FP16 without an island."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions
from blockforge.graph.evaluator import TypedEvaluator

from .decoders import H, Shape, V, Writer, decoder, model_of
from .runs import UNIT, exact, in_onnxruntime, relative, repaired, typed

IDS = {"ids": torch.from_numpy(np.random.default_rng(0).integers(0, V, (2, 6)))}
# A handful of roundings per layer: each part's error is some units of the last place of its own size.
NOISE = 8 * UNIT[DType.FP16]
PLANTS = {  # weight: size of one column
    "layers.0.mlp.down_proj.weight": 1e5,
    "layers.0.attn.o_proj.weight": 1e6,
    "layers.1.mlp.up_proj.weight": 3e5,
    "layers.0.attn.v_proj.weight": 1e6,
    "layers.0.attn.q_proj.weight": 1e5,
    "layers.1.mlp.gate_proj.weight": 1e5,
    "embed.weight": 1e6,
    "norm.weight": 1e5,
}

GATED = {"layers.1.mlp.gate_proj.weight", "layers.1.mlp.up_proj.weight"}


def has_one_exponent(shape):
    """Both factors of a gate at 1e6 spread the tokens of the residual over more than FP16's range: no exponent holds all."""
    return not set(shape.plant) >= GATED


shapes = st.builds(
    Shape,
    norm=st.sampled_from(["rms", "spelled_rms", "layer", "spelled_layer"]),
    layers=st.integers(1, 2),
    tied=st.booleans(),
    bias=st.booleans(),
    post_norm=st.booleans(),
    gate=st.sampled_from(["swish", "gelu", "none"]),
    embed_scale=st.sampled_from([1.0, 25.25]),
    softcap=st.sampled_from([0.0, 30.0, 3e6]),
    attention=st.sampled_from(["operator", "spelled"]),
    seed=st.integers(0, 3),
    plant=st.dictionaries(st.sampled_from(sorted(PLANTS)), st.sampled_from([1e5, 1e6]), max_size=2),
).filter(has_one_exponent)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(shape=shapes, fuse=st.booleans())
def test_repair_changes_no_bit_in_fp32_and_fp16_stays_at_its_noise(shape, fuse):
    options = PrecisionOptions(DType.FP16, fuse=fuse)
    proto = decoder(shape)
    before, after, _ = repaired(proto, IDS, options)
    for old, new in zip(in_onnxruntime(before, IDS), in_onnxruntime(after, IDS), strict=True):
        assert torch.equal(old, new)
    _, _, run = typed(proto, IDS, options)
    assert run.overflow == ()
    plain = TypedEvaluator(typed(proto, IDS, PrecisionOptions(DType.BF16))[0]).run(IDS)
    truth = exact(proto, IDS)["logits"]
    # bf16 has the range but three bits less: fp16 must be clearly better, or at its own noise
    assert relative(run.outputs["logits"], truth) < max(
        NOISE, relative(plain.outputs["logits"], truth)
    )


@pytest.mark.parametrize("weight", PLANTS)
def test_a_planted_outlier_is_named_and_costs_no_matrix_product(weight):
    if weight == "embed.weight":
        shape = Shape(plant={weight: PLANTS[weight]}, tied=False)
    else:
        shape = Shape(plant={weight: PLANTS[weight]})
    proto = decoder(shape)
    _, report, run = typed(proto, IDS)
    assert run.overflow == ()
    assert {w.operator for w in report.islands} & {"MatMul", "Gemm"} == set()
    assert report.streams, "something passes 65504"
    part = weight.removesuffix(".weight").removesuffix("_proj")
    touched = {*report.scaled, *(v for s in report.streams for v in s.values)}
    assert weight in touched or any(part in name for name in touched)
    assert relative(run.outputs["logits"], exact(proto, IDS)["logits"]) < NOISE


def test_without_repair_the_same_graph_has_islands():
    """What repair saves: the residual in FP32 from the outlier on."""
    shape = Shape(plant={"layers.0.mlp.down_proj.weight": 1e5})
    proto = decoder(shape)
    _, report, run = typed(proto, IDS, PrecisionOptions(DType.FP16, repair=False))
    assert report.scaled == {}
    assert run.overflow == ()
    assert any("layers.1.attn.sum" in w.reason for w in report.islands)
    _, report, _ = typed(proto, IDS, PrecisionOptions(DType.FP16, repair=False, island=DType.BF16))
    assert {w.dtype for w in report.islands} == {"bf16"}


def test_the_report_proves_each_weight():
    """scaled: the stored weight times 2^exponent is the source's; headroom moves by the exponent."""
    proto = decoder(Shape(plant={"layers.0.attn.o_proj.weight": 1e6}, tied=False))
    before, after, report = repaired(proto, IDS)
    assert report.scaled
    for name, bits in report.scaled.items():
        source = before.graph.initializers[name.split("/times")[0]].const_value.numpy()
        stored = after.graph.initializers[name].const_value.numpy()
        assert np.array_equal(stored * np.float32(2.0**bits), source)
    _, report, _ = typed(proto, IDS)
    rows = {row.value: row for row in report.headroom}
    row = rows["layers.0.attn.sum"]
    assert row.layer == 0 and row.before < 0 < row.after
    stream = next(s for s in report.streams if "layers.0.attn.sum" in s.values)
    assert row.after - row.before == stream.exponent
    assert min(r.after for r in report.headroom if r.dtype == "fp16") >= 0


def test_epsilon_has_the_square_of_the_factor():
    _, report, _ = typed(decoder(Shape(plant={"layers.0.attn.o_proj.weight": 1e6})), IDS)
    (bits,) = {s.exponent for s in report.streams if "layers.1.attn.sum" in s.values}
    norms = [c for c in report.attributes if "epsilon" in c.where]
    assert {c.after / c.before for c in norms} == {4.0**-bits}
    assert len(norms) == 5


def stream(readers) -> onnx.ModelProto:
    """h = x W1 + x W2 with |h| about 1e6, read as `readers` say: each adds nodes and names its result."""
    w = Writer(Shape(plant={"w1": 1e6}))
    h = w.op("Add", w.op("MatMul", "x", w.weight("w1", H, H)), "x", name="h")
    outputs = [(reader(w, h), H) for reader in readers]
    return model_of(w, [("x", TensorProto.FLOAT, ["batch", 6, H])], outputs, 6)


def read_by_norm(w, h):
    return w.norm(h, "normed")


def read_by_gelu(w, h):
    return w.op("Gelu", h, name="gelu")


def read_by_product(w, h):
    return w.op("MatMul", h, w.weight("w2", H, H), name="product")


def read_by_output(w, h):
    return w.op("Identity", h, name="copy")


def read_by_gate(w, h):
    return w.op("Mul", h, w.op("Sigmoid", w.op("MatMul", "x", w.weight("w3", H, H))), name="gated")


X = {"x": torch.randn(2, 6, H, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize(
    ("readers", "wide"),
    [
        ([read_by_norm], set()),
        ([read_by_norm, read_by_product], {"Mul"}),  # 1e6 * W passes the range as an FP32 output
        ([read_by_norm, read_by_gelu], {"Mul", "Gelu"}),
        ([read_by_norm, read_by_output], {"Mul", "Identity"}),
        ([read_by_gate, read_by_norm], {"Mul"}),
    ],
)
def test_near_misses_of_a_norm_alone(readers, wide):
    """A reader that is not scale-invariant gets the true number back, in FP32, and nothing else is wide."""
    proto = stream(readers)
    before, after, report = repaired(proto, X)
    for old, new in zip(in_onnxruntime(before, X), in_onnxruntime(after, X), strict=True):
        assert torch.equal(old, new)
    assert report.scaled.get("w1", 0) > 0
    _, report, run = typed(proto, X)
    assert run.overflow == ()
    assert {w.operator for w in report.islands} <= wide
    for name, value in exact(proto, X).items():
        assert relative(run.outputs[name], value) < NOISE


def test_a_tied_table_is_not_scaled_for_one_use():
    """The stream starts at rows of the table, whose transpose is the head: a Mul scales the rows."""
    proto = decoder(Shape(plant={"layers.0.attn.o_proj.weight": 1e6}, norm="layer", bias=True))
    model, report, run = typed(proto, IDS)
    assert run.overflow == ()
    tables = [n for n in model.graph.initializers if n.startswith("embed.weight")]
    assert len(tables) <= 2  # this table is small enough for a copy; a large one gets a Mul
    stored = model.graph.initializers["embed.weight"].const_value.numpy()
    source = next(i for i in proto.graph.initializer if i.name == "embed.weight")
    assert np.array_equal(stored, onnx.numpy_helper.to_array(source).astype(np.float16))
    assert (
        report.scaled["layers.0.attn.o_proj.weight"] == report.scaled["layers.1.mlp.down_proj.bias"]
    )
