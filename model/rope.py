"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), rotating the halves of a head.

    angle[s, i] = s * theta^(-2i/D) / factor[i]
    y[i]        = x[i] cos[i]       - x[i + D/2] sin[i]        for i < D/2
    y[i + D/2]  = x[i + D/2] cos[i] + x[i] sin[i]

Shapes: B batch, S sequence, N heads, D head size, R = D/2 rotated pairs; X = N * D.
"""

import math

import numpy as np
import torch
from torch import nn

from .config import FrequencyFactors, LinearScaling, Llama3Scaling, RopeConfig
from .exporting import exporting

CosSin = tuple[torch.Tensor, torch.Tensor]


def rope_frequencies(config: RopeConfig, head_dim: int) -> tuple[float, ...]:
    """Radians per position of each pair, in double precision, scaling applied."""
    plain = [config.rope_theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    match config.scaling:
        case None:
            return tuple(plain)
        case LinearScaling(factor):
            return tuple(f / factor for f in plain)
        case Llama3Scaling():
            return tuple(_llama3(f, config.scaling) for f in plain)
        case FrequencyFactors(factors):
            return tuple(f / factor for f, factor in zip(plain, factors, strict=True))


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    """Scale by how many turns the frequency makes over the original context: few -> all, many -> not."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = min(max(keep, 0.0), 1.0)
    return keep * frequency + (1 - keep) * frequency / scaling.factor


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions 0..S-1, once per forward, shared by all layers.

    Angles are float32 whatever the module's type (float64 for float64): in float16 position 2049 does not
    exist, and even below it an angle is off by more than 0.01. Only the cosines and sines are rounded.
    """

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        super().__init__()
        # no buffer: .half() would round it
        self.frequencies = rope_frequencies(config, head_dim)

    def forward(self, hidden_BSH: torch.Tensor) -> CosSin:
        """cos_BSR, sin_BSR in the type of `hidden_BSH`, of which only batch, sequence and type matter."""
        batch, sequence, _ = hidden_BSH.shape
        wide = torch.promote_types(hidden_BSH.dtype, torch.float32)
        frequency_R = _constant(self.frequencies, wide, hidden_BSH.device)
        position_BS = torch.arange(sequence, device=hidden_BSH.device).expand(batch, sequence)
        angle_BSR = position_BS.to(wide).unsqueeze(-1) * frequency_R
        return angle_BSR.cos().to(hidden_BSH.dtype), angle_BSR.sin().to(hidden_BSH.dtype)


def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values as a vector. Exported as a Constant node, which holds them even under fake tensors."""
    if exporting() and dtype == torch.float32:
        rounded = np.array(values, np.float32).tolist()
        return torch.onnx.ops.symbolic(
            "Constant", (), {"value_floats": rounded}, dtype=dtype, shape=(len(values),)
        )
    return torch.tensor(values, dtype=dtype, device=device)


def apply_rope(x_BSX: torch.Tensor, cos_sin: CosSin, num_heads: int) -> torch.Tensor:
    """Rotate each of `num_heads` heads of [batch, sequence, heads * head_dim]; same shape and type.

    Exported as ONNX RotaryEmbedding (3-D form, halves not interleaved).
    """
    cos_BSR, sin_BSR = cos_sin
    if exporting():
        return torch.onnx.ops.rotary_embedding(x_BSX, cos_BSR, sin_BSR, num_heads=num_heads)
    low_BSNR, high_BSNR = split_heads(x_BSX, num_heads).chunk(2, dim=-1)
    cos_BS1R, sin_BS1R = cos_BSR[:, :, None], sin_BSR[:, :, None]
    rotated = (
        low_BSNR * cos_BS1R - high_BSNR * sin_BS1R,
        high_BSNR * cos_BS1R + low_BSNR * sin_BS1R,
    )
    return torch.cat(rotated, dim=-1).flatten(-2)


def split_heads(x_BSX: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[batch, sequence, heads * head_dim] -> [batch, sequence, heads, head_dim], a view."""
    return x_BSX.view(*x_BSX.shape[:-1], num_heads, -1)
