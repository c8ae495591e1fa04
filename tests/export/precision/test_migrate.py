"""Powers of two by channel: the same FP32 bits, no island, no new node, and FP16 as good as without the outlier."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions, Ranges, measure_ranges, typed_model
from blockforge.graph.evaluator import TypedEvaluator

from .chains import CHAINS, CHANNEL, UP, Chain, model
from .decoders import H, Shape, decoder
from .runs import exact, in_onnxruntime, prepared, relative, repaired, typed
from .test_repair import IDS

X = {"x": 0.1 * torch.randn(2, 6, H, generator=torch.Generator().manual_seed(1))}
LARGE, HUGE = 1e7, 1e10  # times numbers of about 0.1: a channel at 1e6 and at 1e9


def options(chain: Chain) -> PrecisionOptions:
    return PrecisionOptions(DType.FP16, fuse=chain.fuse)


def by_scalar_alone(proto: onnx.ModelProto, feeds, options=None):
    """What typing does that knows no channel's size: its report and its run."""
    options = options or PrecisionOptions(DType.FP16)
    graph = prepared(proto, options)
    report = typed_model(graph, Ranges(measure_ranges(graph, [feeds]).largest), options)
    assert report.migrated == [] and report.by_channel == {}
    return report, TypedEvaluator(graph).run(feeds)


@pytest.fixture(scope="module", params=CHAINS)
def chain(request):
    return CHAINS[request.param]


@pytest.mark.parametrize("size", [LARGE, HUGE])
def test_a_planted_channel_changes_no_bit_in_fp32_and_nothing_in_fp16(chain, size):
    proto, plain = model(chain, size), model(chain)
    before, after, report = repaired(proto, X, options(chain))
    assert [n.op_type for n in before.graph] == [n.op_type for n in after.graph]
    assert report.migrated and not report.attributes
    for old, new in zip(in_onnxruntime(before, X), in_onnxruntime(after, X), strict=True):
        assert torch.equal(old, new)
    _, report, run = typed(proto, X, options(chain))
    assert run.overflow == () and report.islands == [] and report.streams == []
    assert report.inserted == {} and report.scaled == {}
    (row,) = report.migrated
    assert row.channels == 1 and len(row.values) == chain.holds and row.because in row.values
    _, same, without = typed(plain, X, options(chain))
    assert same.migrated == [] and same.streams == []
    error = relative(run.outputs["y"], exact(proto, X)["y"])
    noise = relative(without.outputs["y"], exact(plain, X)["y"])
    assert error < 1.25 * noise
    if size == HUGE:  # 15 to 400 times the noise, or in FP32: norms spelled out
        scalar, alone = by_scalar_alone(proto, X, options(chain))
        far = relative(alone.outputs["y"], exact(proto, X)["y"]) > 10 * noise
        assert far or scalar.islands


@pytest.mark.parametrize("name", ["linear with bias", "relu", "attention spelled", "layer norm", "swiglu spelled"])  # fmt: skip
def test_the_reference_evaluator_gives_the_same_fp32_bits(name):
    before, after, _ = repaired(model(CHAINS[name], LARGE), X, PrecisionOptions(DType.FP16, fuse=False))  # fmt: skip
    old, new = (
        ReferenceEvaluator(ir.to_proto(m)).run(None, {"x": X["x"].numpy()}) for m in (before, after)
    )
    assert np.array_equal(old[0], new[0]) and np.abs(old[0]).max() > 0


def divergence(found: torch.Tensor, true: torch.Tensor) -> float:
    """Mean KL divergence of the next token's distribution, in nats."""
    p, q = (torch.log_softmax(x.double(), -1) for x in (true, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


def planted_decoder(planted) -> onnx.ModelProto:
    """A decoder whose planted channels are larger, which is taken back where they are read."""
    proto = decoder(Shape(tied=False, bias=True))
    for name, (axis, sign) in planted.items():
        (tensor,) = (t for t in proto.graph.initializer if t.name == name)
        numbers = onnx.numpy_helper.to_array(tensor).copy()
        np.moveaxis(numbers, axis, 0)[CHANNEL] *= np.float32(sign)
        tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, name))
    return proto


def pair(layer, writer, reader, size):
    made = {f"layers.{layer}.{writer}.weight": (1, size), f"layers.{layer}.{writer}.bias": (0, size)}  # fmt: skip
    return made | {f"layers.{layer}.{reader}.weight": (0, 1 / size)}


def test_a_decoder_with_outliers_reads_as_one_without():
    """KL 7.5e-7, and 9.5e-7 without them; with one exponent for each value 2.8e-3, and four nodes in FP32."""
    norm = {"layers.1.attn_norm.weight": (0, LARGE)}
    norm |= {f"layers.1.attn.{x}_proj.weight": (0, 1 / LARGE) for x in "qkv"}
    planted = (
        pair(0, "mlp.up_proj", "mlp.down_proj", LARGE)
        | pair(0, "attn.v_proj", "attn.o_proj", HUGE)
        | pair(1, "mlp.up_proj", "mlp.down_proj", HUGE)
        | norm
    )
    proto, plain = planted_decoder(planted), planted_decoder({})
    _, report, run = typed(proto, IDS)
    assert run.overflow == () and report.islands == [] and report.inserted == {}
    assert len(report.migrated) == 4
    _, _, without = typed(plain, IDS)
    noise = divergence(without.outputs["logits"], exact(plain, IDS)["logits"])
    truth = exact(proto, IDS)["logits"]
    assert divergence(run.outputs["logits"], truth) < 2 * noise
    _, alone = by_scalar_alone(proto, IDS)
    assert divergence(alone.outputs["logits"], truth) > 1000 * noise


def test_a_head_of_keys_and_values_shares_its_exponent_with_its_queries():
    _, _, report = repaired(model(CHAINS["grouped attention"], LARGE), X)
    (made,), (read,) = report.by_channel["v.weight"], report.by_channel["o.weight"]
    bits = made.exponents[CHANNEL]
    assert (made.axis, made.exponents) == (1, {CHANNEL: bits})
    assert (read.axis, read.exponents) == (0, {CHANNEL: -bits, CHANNEL + 8: -bits})


def test_the_report_proves_each_weight_and_each_value():
    chain = CHAINS["linear with bias"]
    before, after, report = repaired(model(chain, HUGE), X)
    assert set(report.by_channel) == set(UP)
    for name, axes in report.by_channel.items():
        stored = np.array(after.graph.initializers[name].const_value.numpy())
        for row in axes:
            for place, bits in row.exponents.items():
                np.moveaxis(stored, row.axis, 0)[place] *= np.float32(2.0**bits)
        assert np.array_equal(stored, before.graph.initializers[name].const_value.numpy())
    _, report, _ = typed(model(chain, HUGE), X)
    (row,) = report.migrated
    assert row.exponents == (report.by_channel["up.weight"][0].exponents[CHANNEL],) * 2
    rows = {r.value: r for r in report.headroom}
    assert {rows[v].before < 0 < rows[v].after for v in row.values} == {True}
    assert report.to_json()["migrated"][0]["because"] == row.because
