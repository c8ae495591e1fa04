"""The same operators by others: torch eager (compiled by the caller), Liger-Kernel, and norm + separate quantise."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

E4M3_MAX = 448.0
EPSILON = 1e-5
Call = Callable[[Sequence[torch.Tensor]], Any]


def quantise(y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """FP8 E4M3, saturating."""
    return (y.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def eager(name: str) -> Call:
    """The operator as one writes it in torch; inputs in the operator's order."""
    base = name.removesuffix("Quantize")

    def plain(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if base == "QKNormRope":
            return _qk_norm_rope(*inputs)
        if "GLU" in base:
            gate, up = inputs[0].chunk(2, -1) if "Packed" in base else inputs[:2]
            act = functional.silu(gate) if base.startswith("SwiGLU") else functional.gelu(gate)
            return (act * up,)
        x, *rest = inputs
        if base.startswith("Add"):
            x = x + rest.pop(0)
        shape = x.shape[-1:]
        if "Layer" in base:
            y = functional.layer_norm(x, shape, rest[0], rest[1], EPSILON)
        else:
            y = functional.rms_norm(x, shape, rest[0], EPSILON)
        return (y, x) if base.startswith("Add") else (y,)

    def quantised(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        y, *others = plain(inputs[:-1])
        return (quantise(y, inputs[-1]), *others)

    return quantised if name.endswith("Quantize") else plain


def _qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    def turn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        n = functional.rms_norm(x.unflatten(-1, (-1, len(weight))), weight.shape, weight, EPSILON)
        low, high = n.float().chunk(2, -1)
        c, s = cos[:, :, None], sin[:, :, None]
        return torch.cat([low * c - high * s, high * c + low * s], -1).to(x.dtype).flatten(-2)

    return turn(q, q_weight), turn(k, k_weight)


def liger(name: str) -> Call | None:
    """Liger-Kernel's version, None where it has none; ImportError when it is not installed."""
    from liger_kernel.ops import fused_add_rms_norm, geglu, layer_norm, rms_norm, swiglu

    table: dict[str, Call] = {
        "RMSNorm": lambda i: rms_norm.LigerRMSNormFunction.apply(
            i[0], i[1], EPSILON, 0.0, "llama", False
        ),
        "AddRMSNorm": lambda i: fused_add_rms_norm.LigerFusedAddRMSNormFunction.apply(
            i[0], i[1], i[2], EPSILON, 0.0, "llama", False
        ),
        "LayerNorm": lambda i: layer_norm.LigerLayerNormFunction.apply(*i, EPSILON),
        "SwiGLU": lambda i: swiglu.LigerSiLUMulFunction.apply(*i),
        "GeGLU": lambda i: geglu.LigerGELUMulFunction.apply(*i),
    }
    return table.get(name)
