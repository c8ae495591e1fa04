"""Norms over the last axis, and BatchNorm over the others for contrast.

    RMSNorm     y = x / sqrt(mean(x^2) + eps) * w                          (Zhang & Sennrich 2019, arXiv 1910.07467)
    eps outside y = x / (sqrt(mean(x^2)) + eps) * w
    LayerNorm   y = (x - mean(x)) / sqrt(var(x) + eps) * w + b             (Ba et al. 2016, arXiv 1607.06450)
    BatchNorm   y = (x - running_mean) / sqrt(running_var + eps) * w + b   (Ioffe & Szegedy 2015, arXiv 1502.03167)

Gemma writes its norms with 1 + w. That is a way to store w: checkpoints/quirks.py adds the 1, and these are the norms.

Shapes: B batch, S sequence, H hidden.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .config import NormConfig
from .exporting import exporting
from .wide import widened


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
        wide_BSH = widened(x_BSH)
        mean_square_BS1 = wide_BSH.square().mean(dim=-1, keepdim=True)
        normalised_BSH = wide_BSH * torch.rsqrt(mean_square_BS1 + self.eps)
        return self.weight * normalised_BSH.to(x_BSH.dtype)


class RMSNormEpsOutside(RMSNorm):
    """y = x / (sqrt(mean(x^2)) + eps) * w: the form of the RMSNorm paper's text; no published model here uses it."""

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden]; same shape and type. ONNX has no operator for it: exported as its arithmetic."""
        wide_BSH = widened(x_BSH)
        rms_BS1 = wide_BSH.square().mean(dim=-1, keepdim=True).sqrt()
        return self.weight * (wide_BSH / (rms_BS1 + self.eps)).to(x_BSH.dtype)


class LayerNorm(nn.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, the statistics in float32; without b for PaLM."""

    def __init__(self, hidden_size: int, eps: float, *, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden]; same shape and type. Exported as one LayerNormalization (stash_type 1)."""
        return F.layer_norm(x_BSH, self.weight.shape, self.weight, self.bias, self.eps)


class BatchNorm(nn.Module):
    """Each hidden element over all tokens of the training batches: one row's result depends on other rows' past.

    The running statistics are parameters here, so that they load and stream like every other weight.
    """

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.running_mean = nn.Parameter(torch.zeros(hidden_size))
        self.running_var = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden] as in inference; same shape and type."""
        deviation_H = torch.rsqrt(widened(self.running_var) + self.eps)
        centred_BSH = widened(x_BSH) - widened(self.running_mean)
        y_BSH = centred_BSH * (deviation_H * widened(self.weight)) + widened(self.bias)
        return y_BSH.to(x_BSH.dtype)


NORMS: dict[str, Callable[[NormConfig, int], nn.Module]] = {
    "rms": lambda config, size: RMSNorm(size, config.eps),
    "rms_eps_outside": lambda config, size: RMSNormEpsOutside(size, config.eps),
    "layer": lambda config, size: LayerNorm(size, config.eps, bias=config.bias),
    "batch": lambda config, size: BatchNorm(size, config.eps),
}


def build_norm(config: NormConfig, size: int) -> nn.Module:
    """The norm that `config` names, over `size` elements."""
    return NORMS[config.kind](config, size)
