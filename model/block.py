"""One decoder block: attention, then feed-forward, each with its norm and its residual.

    pre placement   y = x + sub_layer(norm(x))      (Xiong et al. 2020, arXiv 2002.04745)

Shapes: B batch, S sequence, H hidden.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from .attention import Attention
from .config import ModelConfig
from .feed_forward import build_feed_forward
from .norms import build_norm
from .rope import CosSin, RotaryEmbedding

SubLayer = Callable[[torch.Tensor], torch.Tensor]


def pre_norm(x_BSH: torch.Tensor, norm: SubLayer, sub_layer: SubLayer) -> torch.Tensor:
    """x + sub_layer(norm(x)): the residual path itself is never normalised."""
    return x_BSH + sub_layer(norm(x_BSH))


PLACEMENTS = {"pre": pre_norm}


class Block(nn.Module):
    """One layer of the decoder, with Hugging Face's names for its parts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.place = PLACEMENTS[config.placement]
        self.input_layernorm = build_norm(config.norm, config.hidden_size)
        self.self_attn = Attention(config.attention, config.hidden_size)
        self.post_attention_layernorm = build_norm(config.norm, config.hidden_size)
        self.mlp = build_feed_forward(config.feed_forward, config.hidden_size)

    def forward(self, x_BSH: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        attend = partial(self.self_attn, cos_sin=cos_sin)
        h_BSH = self.place(x_BSH, self.input_layernorm, attend)
        return self.place(h_BSH, self.post_attention_layernorm, self.mlp)


class SingleBlock(nn.Module):
    """Block number `layer` alone; its parameters keep their names in the decoder, layers.{layer}.*"""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(layer): Block(config)})
        self.rotary_emb = RotaryEmbedding(config.attention.rope, config.attention.head_dim)

    def forward(self, hidden_states_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type, at positions 0..S-1."""
        (block,) = self.layers.values()
        output_BSH: torch.Tensor = block(hidden_states_BSH, self.rotary_emb(hidden_states_BSH))
        return output_BSH
