"""Feed-forward sub-layers: every token by itself.

    plain    y = act(x Wu^T + bu) Wd^T + bd                      act of PLAIN     (arXiv 1706.03762)
    gated    y = gate(x Wg^T, x Wu^T) Wd^T                       gate of GATES    (Shazeer 2020, arXiv 2002.05202)
    packed   the same, with Wg over Wu in one weight             Phi-3
    experts  y = sum over the chosen experts of weight * gated(x), see experts.py

Shapes: B batch, S sequence, H hidden, F intermediate.
"""

import torch
from torch import nn

from .activations import GATES, PLAIN
from .config import FeedForwardConfig
from .experts import MixtureOfExperts


class PlainFeedForward(nn.Module):
    """Widen, activate, narrow."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.activate = PLAIN[config.kind]
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        y_BSH: torch.Tensor = self.down_proj(self.activate(self.up_proj(x_BSH)))
        return y_BSH


class GatedFeedForward(nn.Module):
    """Gate one projection of x with another, project back."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.gate = GATES[config.kind]
        self.gate_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        y_BSH: torch.Tensor = self.down_proj(self.gate(self.gate_proj(x_BSH), self.up_proj(x_BSH)))
        return y_BSH


class PackedFeedForward(nn.Module):
    """The gated one with both projections in one weight, the gate's rows first."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.gate = GATES[config.kind]
        self.gate_up_proj = nn.Linear(hidden_size, 2 * config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=config.bias)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        gate_BSF, up_BSF = self.gate_up_proj(x_BSH).chunk(2, dim=-1)
        y_BSH: torch.Tensor = self.down_proj(self.gate(gate_BSF, up_BSF))
        return y_BSH


FEED_FORWARDS: dict[str, type[PlainFeedForward | GatedFeedForward]] = {
    **dict.fromkeys(PLAIN, PlainFeedForward),
    **dict.fromkeys(GATES, GatedFeedForward),
}


def build_feed_forward(config: FeedForwardConfig, hidden_size: int) -> nn.Module:
    """The feed-forward sub-layer that `config` names."""
    if config.experts is not None:
        return MixtureOfExperts(config, hidden_size, GatedFeedForward)
    if config.packed:
        return PackedFeedForward(config, hidden_size)
    return FEED_FORWARDS[config.kind](config, hidden_size)
