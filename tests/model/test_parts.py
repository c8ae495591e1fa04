"""Norm, rotary positions and SwiGLU against formulas worked in plain float64, and their 16-bit behaviour."""

import math

import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.model.activations import swiglu
from blockforge.model.config import (
    AttentionConfig,
    FeedForwardConfig,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
)
from blockforge.model.norms import RMSNorm
from blockforge.model.rope import apply_rope, cos_sin, rope_frequencies

HALF = [torch.float16, torch.bfloat16]


def test_rms_norm_by_hand():
    """x = (3, 4), eps = 3.5: mean square 12.5, root of 16 = 4. With eps outside the root it would be 7.04."""
    norm = RMSNorm(2, eps=3.5).double()
    norm.weight.data = torch.tensor([1.0, 10.0], dtype=torch.float64)
    assert norm(torch.tensor([3.0, 4.0], dtype=torch.float64)).tolist() == [0.75, 10.0]


@pytest.mark.parametrize("dtype", HALF)
def test_rms_norm_survives_squares_beyond_float16(dtype):
    """Values of 2e4 as SmolLM2's residual holds: two roundings to `dtype`, statistics in float32."""
    x = torch.randn(4, 576, generator=torch.Generator().manual_seed(0)) * 2e4
    x = x.clamp(-6e4, 6e4).to(dtype)
    norm = RMSNorm(576, eps=1e-5).to(dtype)
    norm.weight.data.uniform_(0.5, 1.5)
    wide = x.double()
    truth = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    assert norm(x).dtype == dtype
    torch.testing.assert_close(norm(x).double(), truth, rtol=torch.finfo(dtype).eps * 1.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_angles_are_right_far_along_in_every_type(dtype):
    """At position 5000: the float32 angle is off by two roundings, the cosine by one rounding to `dtype`."""
    head_dim, last = 64, 5000
    cos, sin = cos_sin(RopeConfig(10000.0), head_dim, torch.zeros(2, last + 1, 8, dtype=dtype))
    angle = torch.tensor(
        [last * 10000.0 ** (-2 * i / head_dim) for i in range(32)], dtype=torch.float64
    )
    bound = 2 * angle * 2**-24 + torch.finfo(dtype).eps / 2
    assert cos.shape == sin.shape == (2, last + 1, 32)
    assert cos.dtype == sin.dtype == dtype
    for batch in range(2):
        assert ((cos[batch, last].double() - angle.cos()).abs() <= bound).all()
        assert ((sin[batch, last].double() - angle.sin()).abs() <= bound).all()


def test_rope_rotates_each_head_as_complex_numbers():
    """Pairs (x[i], x[i + D/2]) are complex numbers times e^(i angle)."""
    heads, head_dim = 3, 8
    x = torch.randn(2, 5, heads * head_dim, dtype=torch.float64)
    rotated = apply_rope(x, cos_sin(RopeConfig(100.0), head_dim, x), heads).view(
        2, 5, heads, head_dim
    )
    pairs = torch.complex(*x.view(2, 5, heads, head_dim).chunk(2, dim=-1))
    angle = torch.arange(5)[:, None, None] * 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    truth = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(
        torch.complex(*rotated.chunk(2, dim=-1)), truth, rtol=1e-13, atol=1e-15
    )


def test_llama3_scaling_by_hand():
    """High frequencies stay, low ones are divided, one between is a blend of both."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    scaled = rope_frequencies(RopeConfig(500000.0, scaling), 128)
    plain = rope_frequencies(RopeConfig(500000.0), 128)
    wavelengths = [2 * math.pi / f for f in plain]
    for wavelength, before, after in zip(wavelengths, plain, scaled, strict=True):
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192 / 1:
            assert after == pytest.approx(before / 8, rel=1e-15)
        else:
            assert before / 8 < after < before
    between = sum(2048 < w < 8192 for w in wavelengths)
    assert between > 3


def test_frequency_factors_divide():
    plain = rope_frequencies(RopeConfig(10000.0), 8)
    factors = (1.0, 2.0, 4.0, 8.0)
    scaled = rope_frequencies(RopeConfig(10000.0, FrequencyFactors(factors)), 8)
    assert scaled == tuple(p / f for p, f in zip(plain, factors, strict=True))


def test_swiglu_by_hand():
    gate, up = torch.tensor([0.0, math.log(3), -math.log(3)]), torch.tensor([5.0, 2.0, 2.0])
    truth = torch.tensor([0.0, math.log(3) * 0.75 * 2, -math.log(3) * 0.25 * 2])
    torch.testing.assert_close(swiglu(gate, up), truth, rtol=4 * 2**-24, atol=0)


def config(hidden_size=64, eps=1e-5, heads=(4, 2, 16), theta=1e4, scaling=None, intermediate=8):
    return ModelConfig(
        vocab_size=10,
        hidden_size=hidden_size,
        num_layers=1,
        max_position_embeddings=8,
        norm=NormConfig(eps),
        attention=AttentionConfig(*heads, RopeConfig(theta, scaling)),
        feed_forward=FeedForwardConfig(intermediate),
    )


BAD = {
    "hidden_size is 0": lambda: config(hidden_size=0),
    "intermediate_size is -8": lambda: config(intermediate=-8),
    "hidden_size is 16777217": lambda: config(hidden_size=2**24 + 1),
    r"num_heads \* head_dim is 33554432": lambda: config(heads=(2**20, 1, 32)),
    "eps is nan": lambda: config(eps=math.nan),
    "rope_theta is inf": lambda: config(theta=math.inf),
    "num_heads 4 is no multiple of num_kv_heads 3": lambda: config(heads=(4, 3, 16)),
    "head_dim 15 is odd": lambda: config(heads=(4, 2, 15)),
    "3 RoPE frequency factors": lambda: config(scaling=FrequencyFactors((1.0, 1.0, 1.0))),
    "scaling factor of 0": lambda: LinearScaling(0),
    "low_freq_factor 4": lambda: Llama3Scaling(8.0, 4, 4.0, 8192),
}


@pytest.mark.parametrize("words", BAD)
def test_contradicting_sizes_are_refused(words):
    with pytest.raises(UsageError, match=words):
        BAD[words]()


def test_the_smallest_configuration_is_accepted():
    """Near miss of all the refusals above."""
    config(hidden_size=1, heads=(1, 1, 2), scaling=FrequencyFactors((1.0,)), intermediate=1)
