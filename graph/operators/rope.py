"""RotaryEmbedding (ONNX opset 23): rotate pairs of a head's numbers by angles given as cosines and sines."""

import torch

from ..values import split_axis
from .registry import Call, Tensor, math


@math("RotaryEmbedding")
def rotary_embedding(
    call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None
) -> Tensor:
    """x [B, N, S, D] or [B, S, N*D]; cos, sin [positions, R/2], or [B, S, R/2] without position_ids."""
    packed = x.ndim == 3
    if packed and not call.get_int("num_heads", 0):
        raise ValueError("a 3-D input needs num_heads")
    x_BSND = split_axis(x, 2, (call.get_int("num_heads", 0), -1)) if packed else x.transpose(1, 2)
    size = call.get_int("rotary_embedding_dim", 0) or x_BSND.shape[-1]
    turning, still = x_BSND[..., :size], x_BSND[..., size:]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    if cos.shape[-1] != size // 2 or cos.shape != sin.shape:
        raise ValueError(f"cos {list(cos.shape)}, sin {list(sin.shape)} for {size} rotated numbers")
    if cos.shape[:2] != x_BSND.shape[:2]:
        raise ValueError(f"cos {list(cos.shape)} for batch and sequence {list(x_BSND.shape[:2])}")
    cos_BS1R, sin_BS1R = cos.unsqueeze(2), sin.unsqueeze(2)
    if call.get_int("interleaved", 0):
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning.chunk(2, -1)
    real = cos_BS1R * first - sin_BS1R * second
    imaginary = sin_BS1R * first + cos_BS1R * second
    if call.get_int("interleaved", 0):
        turned = torch.stack([real, imaginary], -1).flatten(-2)
    else:
        turned = torch.cat([real, imaginary], -1)
    result = torch.cat([turned, still], -1)
    return result.flatten(2) if packed else result.transpose(1, 2)
