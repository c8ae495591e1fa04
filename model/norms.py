"""Norms over the last axis.

    RMSNorm   y = x / sqrt(mean(x^2) + eps) * w        (Zhang & Sennrich 2019, arXiv 1910.07467)

Shapes: B batch, S sequence, H hidden.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .config import NormConfig
from .exporting import exporting


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * w, the statistics in float32 (float64 for float64 inputs).

    eps stands inside the root, and the normalised value is rounded to x's type before the weight scales
    it: the order of ONNX's RMSNormalization (stash_type 1) and of Llama. In 16 bit the square of a value
    above 256 would pass float16's range: hence the wider statistics.
    """

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden]; same shape and type. Exported as one RMSNormalization."""
        if exporting():
            return F.rms_norm(x_BSH, self.weight.shape, self.weight, self.eps)
        wide_BSH = x_BSH.to(torch.promote_types(x_BSH.dtype, torch.float32))
        mean_square_BS1 = wide_BSH.square().mean(dim=-1, keepdim=True)
        normalised_BSH = wide_BSH * torch.rsqrt(mean_square_BS1 + self.eps)
        return self.weight * normalised_BSH.to(x_BSH.dtype)


NORMS = {"rms": RMSNorm}


def build_norm(config: NormConfig, hidden_size: int) -> nn.Module:
    """The norm that `config` names, over `hidden_size` elements."""
    return NORMS[config.kind](hidden_size, config.eps)
