"""Operators of ONNX Runtime's own domain that optimised Hugging Face files carry; oracle: ONNX Runtime.

Source: ONNX Runtime, ContribOperators. Not here, so refused by name: the attention and 4-bit product families.
"""

import torch
from torch.nn import functional

from ..values import split_axis
from .registry import Call, Tensor, math

_DOMAIN = "com.microsoft"


@math("SkipSimplifiedLayerNormalization", "SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, *rest: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum x + skip (+ bias) normalised: y, mean, 1 / deviation, and the sum itself.

    rest: beta and bias for SkipLayerNormalization, bias alone for the RMS form.
    """
    centred = call.op_type == "SkipLayerNormalization"
    beta = rest[0] if centred and rest else None
    after = rest[1:] if centred else rest
    total = x + skip
    if after and after[0] is not None:
        total = total + after[0]
    mean = total.mean(-1, keepdim=True)
    middle = total - mean if centred else total
    inverse = torch.rsqrt(middle.square().mean(-1, keepdim=True) + call.get_float("epsilon", 1e-5))
    y = middle * inverse * scale
    return (y if beta is None else y + beta), mean, inverse, total


@math("Gelu", "BiasGelu", "FastGelu", "QuickGelu", domain=_DOMAIN)
def gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Exact, with a bias, by tanh, or x * sigmoid(alpha * x)."""
    x = x if bias is None else x + bias
    if call.op_type == "QuickGelu":
        return x * torch.sigmoid(call.get_float("alpha", 1.702) * x)
    return functional.gelu(x, approximate="tanh" if call.op_type == "FastGelu" else "none")


@math("FusedMatMul", domain=_DOMAIN)
def fused_matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """alpha * a @ b with optional transposes of the last two axes."""
    if call.get_int("transBatchA", 0) or call.get_int("transBatchB", 0):
        raise ValueError("transBatchA and transBatchB are not supported")
    a = a.mT if call.get_int("transA", 0) else a
    b = b.mT if call.get_int("transB", 0) else b
    return torch.matmul(a, b) * call.get_float("alpha", 1.0)


@math("RotaryEmbedding", domain=_DOMAIN)
def rotary_embedding(call: Call, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, N, S, D] or [B, S, N*D]; positions [B, S], or [1]: the first one; caches [positions, R/2]."""
    packed = x.ndim == 3
    size = call.get_int("rotary_embedding_dim", 0) or 2 * cos.shape[-1]
    heads = call.get_int("num_heads", 0)
    x_BSND = split_axis(x, 2, (heads, -1) if heads else (-1, size)) if packed else x.transpose(1, 2)
    if positions.numel() == 1 and positions.ndim == 1:
        positions = (positions + torch.arange(x_BSND.shape[1])).expand(x_BSND.shape[0], -1)
    cos_BS1R, sin_BS1R = (t[positions].unsqueeze(2) for t in (cos, sin))
    turning, still = x_BSND[..., :size], x_BSND[..., size:]
    interleaved = bool(call.get_int("interleaved", 0))
    first = turning[..., 0::2] if interleaved else turning[..., : size // 2]
    second = turning[..., 1::2] if interleaved else turning[..., size // 2 :]
    turned = (cos_BS1R * first - sin_BS1R * second, sin_BS1R * first + cos_BS1R * second)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    result = torch.cat([joined, still], -1)
    return result.flatten(2) if packed else result.transpose(1, 2)
