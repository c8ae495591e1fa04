"""One block: attention, then feed-forward, each with its norms and its residual by placement.

    pre placement   h = x + attention(norm(x));   y = h + feed_forward(norm(h))      others: placement.py

Shapes: B batch, S sequence, T source, H hidden.
"""

from functools import partial

import torch
from torch import nn

from .attention import CrossAttention, build_attention
from .config import ModelConfig
from .context import Context
from .feed_forward import build_feed_forward
from .masks import AttentionMasks, padding_mask
from .norms import build_norm
from .placement import PLACEMENTS, norm_names, norms_around
from .relative_bias import RelativeBias
from .rope import RotaryEmbedding


class Block(nn.Module):
    """Layer number `layer` of the model, with Hugging Face's names for its parts."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.placement = PLACEMENTS[config.placement]
        hidden_size = config.hidden_size
        for name in norm_names(config):
            self.add_module(name, build_norm(config.norm, hidden_size))
        self.self_attn = build_attention(config.attention_of(layer), hidden_size, config.norm.eps)
        if config.cross_attention is not None:
            self.cross_attn = CrossAttention(config.cross_attention, hidden_size)
        self.mlp = build_feed_forward(config.feed_forward_of(layer), hidden_size)

    def forward(self, x_BSH: torch.Tensor, context: Context) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        combine, norms = self.placement.combine, partial(norms_around, self, self.config)
        attend = partial(self.self_attn, context=context)
        if self.placement.parallel:
            return combine(x_BSH, lambda n_BSH: attend(n_BSH) + self.mlp(n_BSH), norms("attention"))
        h_BSH = combine(x_BSH, attend, norms("attention"))
        if self.config.cross_attention is not None:
            look_back = partial(self.cross_attn, context=context)
            h_BSH = combine(h_BSH, look_back, norms("cross_attention"))
        return combine(h_BSH, self.mlp, norms("feed_forward"))


class SingleBlock(nn.Module):
    """Block number `layer` alone; its parameters keep their names in the model, layers.{layer}.*"""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        attention = config.attention_of(layer)
        self.layers = nn.ModuleDict({str(layer): Block(config, layer)})
        self.rotary_emb = RotaryEmbedding((attention,))
        self.masks = AttentionMasks((attention,))
        self.relative_bias = build_relative_bias(config)

    def forward(
        self, hidden_states_BSH: torch.Tensor, attention_mask_BS: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type, at positions 0..S-1.

        attention_mask: [batch, sequence] of ones and zeros, where the config has a padding_mask.
        """
        (block,) = self.layers.values()
        context = self.context(hidden_states_BSH, attention_mask_BS)
        output_BSH: torch.Tensor = block(hidden_states_BSH, context)
        return output_BSH

    def context(
        self, hidden_BSH: torch.Tensor, attention_mask_BS: torch.Tensor | None = None
    ) -> Context:
        """Rotations and masks for this input."""
        bias = None if self.relative_bias is None else self.relative_bias(hidden_BSH.shape[1])
        masks = self.masks(hidden_BSH, attention_mask_BS, bias)
        return Context(self.rotary_emb(hidden_BSH), masks)


class SingleCrossBlock(SingleBlock):
    """A block with cross-attention alone: it needs the encoder's last hidden state too."""

    def forward(  # type: ignore[override]
        self,
        hidden_states_BSH: torch.Tensor,
        encoder_hidden_states_BTH: torch.Tensor,
        encoder_attention_mask_BT: torch.Tensor,
    ) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type.

        encoder_hidden_states: [batch, source, hidden]; encoder_attention_mask: [batch, source], ones and zeros.
        """
        (block,) = self.layers.values()
        own = self.context(hidden_states_BSH)
        context = Context(
            own.cos_sin,
            own.masks,
            encoder_hidden_states_BTH,
            padding_mask(encoder_attention_mask_BT, hidden_states_BSH),
        )
        output_BSH: torch.Tensor = block(hidden_states_BSH, context)
        return output_BSH


def build_relative_bias(config: ModelConfig) -> RelativeBias | None:
    """The bias that all layers share, None where the attention has none."""
    return None if config.attention.relative_bias is None else RelativeBias(config.attention)
