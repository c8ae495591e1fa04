"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), rotating the halves of a head.

    angle[s, i] = s * theta^(-2i/D) / factor[i]
    y[i]        = x[i] cos[i]       - x[i + D/2] sin[i]        for i < D/2
    y[i + D/2]  = x[i + D/2] cos[i] + x[i] sin[i]

Shapes: B batch, S sequence, N heads, D rotated elements of a head, R = D/2 pairs; X = N * head size.
"""

import functools
import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from .config import (
    AttentionConfig,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from .exporting import exporting

CosSin = tuple[torch.Tensor, torch.Tensor]
Rotation = tuple[RopeConfig, int]  # the positions and the number of elements that they rotate


@functools.cache
def rope_frequencies(config: RopeConfig, dim: int, *, long: bool = False) -> tuple[float, ...]:
    """Radians per position of each of dim / 2 pairs, in double precision, scaling applied.

    long: beyond the original context, where LongRoPE has other factors.
    """
    plain = [config.rope_theta ** (-2 * i / dim) for i in range(dim // 2)]
    match config.scaling:
        case None:
            return tuple(plain)
        case LinearScaling(factor):
            return tuple(f / factor for f in plain)
        case Llama3Scaling():
            return tuple(_llama3(f, config.scaling) for f in plain)
        case YarnScaling():
            return _yarn(plain, config.rope_theta, config.scaling)
        case LongRopeScaling(short_factor, long_factor):
            factors = long_factor if long else short_factor
            return tuple(f / factor for f, factor in zip(plain, factors, strict=True))
        case FrequencyFactors(factors):
            return tuple(f / factor for f, factor in zip(plain, factors, strict=True))


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    """Scale by how many turns the frequency makes over the original context: few -> all, many -> not."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = min(max(keep, 0.0), 1.0)
    return keep * frequency + (1 - keep) * frequency / scaling.factor


def _yarn(plain: list[float], theta: float, scaling: YarnScaling) -> tuple[float, ...]:
    """Ramp over the pair number, from the pair that makes beta_fast turns to the one that makes beta_slow."""
    pairs, context = len(plain), scaling.original_max_position_embeddings

    def pair_with(turns: float) -> float:
        return pairs * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    first, last = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first or 0.001
    scaled = []
    for i, frequency in enumerate(plain):
        divided = min(max((i - first) / width, 0.0), 1.0)
        scaled.append(frequency / scaling.factor * divided + frequency * (1 - divided))
    return tuple(scaled)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions 0..S-1 for every kind of rotation, once per forward, shared by all layers.

    Angles are float32 whatever the module's type (float64 for float64): in float16 position 2049 does not
    exist, and even below it an angle is off by more than 0.01. Only the cosines and sines are rounded.
    """

    def __init__(self, attentions: Iterable[AttentionConfig]) -> None:
        super().__init__()
        # no buffers: .half() would round them
        kinds = (rotation_of(a) for a in attentions)
        self.kinds: tuple[Rotation, ...] = tuple(dict.fromkeys(k for k in kinds if k is not None))

    def forward(self, hidden_BSH: torch.Tensor) -> dict[Rotation, CosSin]:
        """Each rotation's cos_BSR, sin_BSR in the type of `hidden_BSH`, whose batch, sequence and type matter."""
        return {(config, dim): cos_sin(config, dim, hidden_BSH) for config, dim in self.kinds}


def rotation_of(attention: AttentionConfig) -> Rotation | None:
    """How `attention` rotates, None where it does not."""
    return None if attention.rope is None else (attention.rope, attention.rotary_dim)


def cos_sin(config: RopeConfig, dim: int, hidden_BSH: torch.Tensor) -> CosSin:
    """cos_BSR and sin_BSR of positions 0..S-1 in the type of `hidden_BSH`."""
    batch, sequence, _ = hidden_BSH.shape
    wide = torch.promote_types(hidden_BSH.dtype, torch.float32)
    position_S = torch.arange(sequence, device=hidden_BSH.device)
    frequency_R = constant(rope_frequencies(config, dim), wide, hidden_BSH.device)
    factor = 1.0
    if isinstance(config.scaling, YarnScaling | LongRopeScaling):
        factor = config.scaling.attention_factor
    if isinstance(config.scaling, LongRopeScaling):
        long_R = constant(rope_frequencies(config, dim, long=True), wide, hidden_BSH.device)
        is_long = position_S[-1:] >= config.scaling.original_max_position_embeddings
        frequency_R = torch.where(is_long, long_R, frequency_R)
    position_BS = position_S.expand(batch, sequence)
    angle_BSR = position_BS.to(wide).unsqueeze(-1) * frequency_R
    cos_BSR, sin_BSR = angle_BSR.cos(), angle_BSR.sin()
    if factor != 1:
        cos_BSR, sin_BSR = cos_BSR * factor, sin_BSR * factor
    return cos_BSR.to(hidden_BSH.dtype), sin_BSR.to(hidden_BSH.dtype)


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values as a vector. Exported as a Constant node, which holds them even under fake tensors."""
    if exporting() and dtype == torch.float32:
        rounded = np.array(values, np.float32).tolist()
        return torch.onnx.ops.symbolic(
            "Constant", (), {"value_floats": rounded}, dtype=dtype, shape=(len(values),)
        )
    if exporting() and dtype == torch.int64:
        return torch.onnx.ops.symbolic(
            "Constant", (), {"value_ints": list(values)}, dtype=dtype, shape=(len(values),)
        )
    return torch.tensor(values, dtype=dtype, device=device)


def apply_rope(x_BSX: torch.Tensor, cos_sin: CosSin, num_heads: int) -> torch.Tensor:
    """Rotate each of `num_heads` heads of [batch, sequence, heads * head size]; same shape and type.

    Where a head is longer than the rotation, its first elements are rotated and the others kept. Exported as ONNX
    RotaryEmbedding (3-D form, halves not interleaved).
    """
    cos_BSR, sin_BSR = cos_sin
    rotated, head = 2 * cos_BSR.shape[-1], x_BSX.shape[-1] // num_heads
    if exporting():
        partial = rotated if rotated < head else 0
        return torch.onnx.ops.rotary_embedding(
            x_BSX, cos_BSR, sin_BSR, num_heads=num_heads, rotary_embedding_dim=partial
        )
    x_BSND = split_heads(x_BSX, num_heads)
    low_BSNR, high_BSNR = x_BSND[..., :rotated].chunk(2, dim=-1)
    cos_BS1R, sin_BS1R = cos_BSR[:, :, None], sin_BSR[:, :, None]
    turned = (
        low_BSNR * cos_BS1R - high_BSNR * sin_BS1R,
        high_BSNR * cos_BS1R + low_BSNR * sin_BS1R,
    )
    return torch.cat((*turned, x_BSND[..., rotated:]), dim=-1).flatten(-2)


def split_heads(x_BSX: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[batch, sequence, heads * head size] -> [batch, sequence, heads, head size], a view."""
    return x_BSX.view(*x_BSX.shape[:-1], num_heads, -1)
