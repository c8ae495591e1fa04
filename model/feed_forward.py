"""Feed-forward sub-layers.

    SwiGLU   y = (silu(x Wg^T) * (x Wu^T)) Wd^T,   silu(g) = g / (1 + e^-g)      (Shazeer 2020, arXiv 2002.05202)

Shapes: B batch, S sequence, H hidden, F intermediate.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from ..core.domain import DOMAIN, DOMAIN_VERSION
from .config import FeedForwardConfig
from .exporting import exporting


class SwiGLU(nn.Module):
    """Gate one projection of x with the SiLU of another, project back."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        y_BSH: torch.Tensor = self.down_proj(swiglu(self.gate_proj(x_BSH), self.up_proj(x_BSH)))
        return y_BSH


def swiglu(gate_BSF: torch.Tensor, up_BSF: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. Exported as one blockforge::SwiGLU node."""
    if exporting():
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::SwiGLU",
            (gate_BSF, up_BSF),
            dtype=gate_BSF.dtype,
            shape=gate_BSF.shape,
            version=DOMAIN_VERSION,
        )
    return F.silu(gate_BSF) * up_BSF


FEED_FORWARDS = {"swiglu": SwiGLU}


def build_feed_forward(config: FeedForwardConfig, hidden_size: int) -> nn.Module:
    """The feed-forward sub-layer that `config` names."""
    return FEED_FORWARDS[config.kind](hidden_size, config.intermediate_size)
