"""Families and variants that no library here has, against their formulas written out in plain float64."""

import math
from dataclasses import replace

import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.model.activations import GATES, PLAIN
from blockforge.model.build import load_module
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.config import ExpertsConfig, FeedForwardConfig, NormConfig, RelativeBiasConfig
from blockforge.model.experts import Router
from blockforge.model.norms import build_norm
from blockforge.model.presets import PRESETS
from blockforge.model.relative_bias import distance_buckets

from .test_decoder import relative

X = torch.randn(2, 11, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def read(preset: str, layer: int = 0):
    """(block in float64, function: part's name -> its weight)."""
    checkpoint = preset_checkpoint(preset)
    block = load_module(checkpoint, layer=layer, dtype=torch.float64)
    return block, lambda part: checkpoint.read(f"layers.{layer}.{part}", torch.float64)


def rotated(x: torch.Tensor, theta: float = 10000.0) -> torch.Tensor:
    """RoPE as multiplication by e^(i s w), halves paired; x [..., S, D]."""
    sequence, size = x.shape[-2:]
    frequency = theta ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    angle = torch.arange(sequence)[:, None] * frequency
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def attention(x, w, heads, size, *, cap=None):
    """Causal attention, one head at a time; heads: (query heads, key heads)."""
    q, k, v = (x @ w(f"self_attn.{p}_proj.weight").T for p in "qkv")
    outputs = []
    for head in range(heads[0]):
        shared = head * heads[1] // heads[0]
        qs, (ks, vs) = (
            q[..., head * size :][..., :size],
            (t[..., shared * size :][..., :size] for t in (k, v)),
        )
        scores = rotated(qs) @ rotated(ks).mT / math.sqrt(size)
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ vs)
    return torch.cat(outputs, -1) @ w("self_attn.o_proj.weight").T


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def silu(z):
    return z / (1 + torch.exp(-z))


def gelu_tanh(z):
    return z / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def test_palm_block():
    """y = x + attention(norm x) + swiglu(norm x), one key head, a LayerNorm without bias."""
    block, w = read("palm-tiny")
    mean, var = X.mean(-1, keepdim=True), X.var(-1, keepdim=True, unbiased=False)
    n = (X - mean) / (var + 1e-6).sqrt() * w("input_layernorm.weight")
    gate, up = n @ w("mlp.gate_proj.weight").T, n @ w("mlp.up_proj.weight").T
    feed_forward = (silu(gate) * up) @ w("mlp.down_proj.weight").T
    expected = X + attention(n, w, (4, 1), 32) + feed_forward
    assert relative(block(X), expected) < 1e-12
    assert sum(1 for name, _ in block.named_parameters() if "bias" in name) == 0


def test_grok_1_block():
    """Norms on both sides, scores capped at 30, two of eight experts weighted by their softmax, not renormalised."""
    block, w = read("grok-1-tiny")
    block.layers["0"].self_attn.q_proj.weight.mul_(40)  # so that the cap bites

    def scaled(part):
        return w(part) * (40 if part == "self_attn.q_proj.weight" else 1)

    a = attention(rms(X, w("input_layernorm.weight"), 1e-5), scaled, (4, 2), 16, cap=30.0)
    h = X + rms(a, w("post_attention_layernorm.weight"), 1e-5)
    n = rms(h, w("pre_feedforward_layernorm.weight"), 1e-5)
    chance = (n @ w("mlp.gate.weight").T).softmax(-1)
    y = torch.zeros_like(n)
    for b in range(2):
        for s in range(11):
            best = chance[b, s].argsort(descending=True)[:2]
            for e in best.tolist():
                gate, up, down = (
                    w(f"mlp.experts.{p}_proj.weight")[e] for p in ("gate", "up", "down")
                )
                z = gelu_tanh(gate @ n[b, s]) * (up @ n[b, s])
                y[b, s] += chance[b, s, e] * (down @ z)
    expected = h + rms(y, w("post_feedforward_layernorm.weight"), 1e-5)
    assert relative(block(X), expected) < 1e-12


def test_grok_1_scales_embedding_and_logits():
    config = PRESETS["grok-1"]
    assert config.embedding.scale == pytest.approx(78.38367176906169, rel=1e-12)  # run.py
    assert config.head.scale == pytest.approx(0.5773502691896257, rel=1e-12)
    assert config.attention.score_scale == pytest.approx(0.08838834764831845, rel=1e-12)


def test_sandwich_block():
    block, w = read("sandwich-tiny")
    a = attention(rms(X, w("input_layernorm.weight"), 1e-5), w, (4, 2), 16)
    h = X + rms(a, w("post_attention_layernorm.weight"), 1e-5)
    n = rms(h, w("pre_feedforward_layernorm.weight"), 1e-5)
    gate, up = n @ w("mlp.gate_proj.weight").T, n @ w("mlp.up_proj.weight").T
    f = (silu(gate) * up) @ w("mlp.down_proj.weight").T
    assert relative(block(X), h + rms(f, w("post_feedforward_layernorm.weight"), 1e-5)) < 1e-12


GATE_FORMULAS = {
    "glu": lambda g: 1 / (1 + torch.exp(-g)),
    "reglu": lambda g: torch.where(g > 0, g, torch.zeros_like(g)),
    "geglu": lambda g: g / 2 * (1 + torch.erf(g / math.sqrt(2))),
    "geglu_tanh": gelu_tanh,
    "swiglu": silu,
}


@pytest.mark.parametrize("kind", GATE_FORMULAS)
def test_gates(kind):
    gate, up = X[..., :32], X[..., 32:]
    torch.testing.assert_close(
        GATES[kind](gate, up), GATE_FORMULAS[kind](gate) * up, rtol=1e-12, atol=1e-14
    )
    assert set(GATE_FORMULAS) == set(GATES)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_activations(kind):
    formulas = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
    expected = GATE_FORMULAS[formulas[kind]](X)
    if kind == "relu":
        expected = X.clamp(min=0)
    torch.testing.assert_close(PLAIN[kind](X), expected, rtol=1e-12, atol=1e-14)


def norm(kind: str, eps: float, **parts: list[float]):
    built = build_norm(NormConfig(eps, kind), 2).double()
    for name, values in parts.items():
        getattr(built, name).data = torch.tensor(values, dtype=torch.float64)
    return built(torch.tensor([[3.0, 4.0]], dtype=torch.float64))[0].tolist()


def test_eps_inside_and_outside_the_root():
    """x = (3, 4): mean square 12.5. Inside with 3.5: root of 16. Outside: root of 12.5, plus 0.5 for 4.0355."""
    assert norm("rms", 3.5) == [0.75, 1.0]
    outside = norm("rms_eps_outside", 0.5, weight=[1.0, 2.0])
    divisor = math.sqrt(12.5) + 0.5
    assert outside == pytest.approx([3 / divisor, 8 / divisor], rel=1e-15)


def test_batch_norm_uses_the_past_of_all_rows():
    found = norm(
        "batch",
        1.0,
        weight=[2.0, 1.0],
        bias=[0.5, -1.0],
        running_mean=[1.0, 4.0],
        running_var=[3.0, 8.0],
    )
    assert found == pytest.approx([(3 - 1) / 2 * 2 + 0.5, -1.0], rel=1e-15)


def test_layer_norm_without_bias():
    built = build_norm(NormConfig(0.75, "layer", bias=False), 2).double()
    assert [name for name, _ in built.named_parameters()] == ["weight"]
    found = built(torch.tensor([[3.0, 4.0]], dtype=torch.float64))[0].tolist()  # variance 0.25
    assert found == pytest.approx([-0.5, 0.5], rel=1e-15)


def test_router_chooses_by_index_where_scores_are_equal():
    """All experts alike: still two, not eight."""
    router = Router(ExpertsConfig(8, 2), 4).double()
    router.weight.data.zero_()
    weights = router(torch.ones(5, 4, dtype=torch.float64))
    assert (weights > 0).sum(-1).tolist() == [2] * 5
    assert weights.sum(-1).tolist() == pytest.approx([0.25] * 5)


def test_router_keeps_to_the_best_groups():
    """Scores 0.9 and 0.1 | 0.6 and 0.5: by its two best together the second group wins, though not the best expert."""
    config = ExpertsConfig(4, 2, "sigmoid", num_groups=2, num_active_groups=1)
    router = Router(config, 1).double()
    scores = torch.tensor([0.9, 0.1, 0.6, 0.5], dtype=torch.float64)
    router.weight.data = torch.logit(scores)[:, None]
    (weights,) = router(torch.ones(1, 1, dtype=torch.float64)).tolist()
    assert weights == pytest.approx([0, 0, 0.6, 0.5], rel=1e-12)


def test_relative_buckets_by_hand():
    """32 buckets both ways: 8 exact each way, then halving steps of the logarithm, 16 and beyond for keys ahead."""
    buckets = distance_buckets(RelativeBiasConfig(32, 128), both_ways=True)
    at = dict(zip(range(-128, 129), buckets, strict=True))
    assert [at[d] for d in (0, -1, -7, -8, -11, -12, -16, -128)] == [0, 1, 7, 8, 8, 9, 10, 15]
    assert all(at[d] == 16 + at[-d] for d in range(1, 129))
    back = distance_buckets(RelativeBiasConfig(32, 128), both_ways=False)
    at = dict(zip(range(-128, 129), back, strict=True))
    assert [at[d] for d in (5, 0, -1, -15, -16, -128)] == [0, 0, 1, 15, 16, 31]


BAD = {
    "0 active of 8 experts": {"num_active": 0},
    "2 groups over 8 experts": {"num_groups": 2, "num_active_groups": 3},
    "4 active experts from 1 groups of 2": {
        "num_active": 4,
        "num_groups": 4,
        "num_active_groups": 1,
    },
}


@pytest.mark.parametrize("words", BAD)
def test_contradicting_experts_are_refused(words):
    experts = ExpertsConfig(**{"num_experts": 8, "num_active": 2} | BAD[words])
    with pytest.raises(UsageError, match=words):
        replace(PRESETS["llama-tiny"], feed_forward=FeedForwardConfig(8, experts=experts))


MISFITS = {
    "packed relu": {"feed_forward": FeedForwardConfig(8, "relu", packed=True)},
    "placement 'deepnorm' and deepnorm None": {"placement": "deepnorm"},
    "an encoder and no cross attention": {"encoder": PRESETS["t5-tiny-encoder"]},
    "without a padding_mask": {
        "embedding": replace(PRESETS["bert-tiny"].embedding, norm=False),
    },
    "18 rotated elements in a head of 16": {
        "attention": replace(
            PRESETS["llama-tiny"].attention,
            rope=replace(PRESETS["llama-tiny"].attention.rope, rotary_dim=18),
        )
    },
    "window is 0": {"attention": replace(PRESETS["llama-tiny"].attention, window=0)},
    "6 buckets": None,
}


@pytest.mark.parametrize("words", MISFITS)
def test_contradicting_parts_are_refused(words):
    with pytest.raises(UsageError, match=words):
        if MISFITS[words] is None:
            RelativeBiasConfig(6, 128)
        else:
            replace(PRESETS["llama-tiny"], **MISFITS[words])
