"""Self-attention and cross-attention with grouped queries.

    q, k, v = x Wq^T, y Wk^T, y Wv^T;   attention = attend(rotate(norm(q)), rotate(norm(k)), v) Wo^T

y is x in self-attention and the encoder's last hidden state in cross-attention (arXiv 1706.03762). N query
heads share K key-value heads, N / K each (grouped queries: Ainslie et al. 2023, arXiv 2305.13245; K = N is
multi-head, K = 1 multi-query attention, arXiv 1911.02150). The norm of each head is Qwen3's and Gemma 3's (arXiv
2302.05442).

Shapes: B batch, S queries, T keys, H hidden, N query heads, K key-value heads, D head size, X heads * D.
"""

import torch
from torch import nn

from .config import AttentionConfig
from .context import Context
from .latent_attention import LatentAttention
from .norms import build_norm
from .rope import apply_rope, rotation_of, split_heads
from .scores import attend


class Attention(nn.Module):
    """Project to q, k, v; norm and rotate q and k; attend; project back."""

    def __init__(self, config: AttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        if config.packed:
            packed_size = self.q_size + 2 * self.kv_size
            self.qkv_proj = nn.Linear(hidden_size, packed_size, bias=config.bias)
        else:
            self.q_proj = nn.Linear(hidden_size, self.q_size, bias=config.bias)
            self.k_proj = nn.Linear(hidden_size, self.kv_size, bias=config.bias)
            self.v_proj = nn.Linear(hidden_size, self.kv_size, bias=config.bias)
        self.o_proj = nn.Linear(self.q_size, hidden_size, bias=config.out_bias)
        if config.qk_norm is not None:
            self.q_norm = build_norm(config.qk_norm, config.head_dim)
            self.k_norm = build_norm(config.qk_norm, config.head_dim)

    def forward(self, x_BSH: torch.Tensor, context: Context) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        config = self.config
        q_BSX, k_BSX, v_BSX = self.project(x_BSH)
        if config.qk_norm is not None:
            q_BSX = self.q_norm(split_heads(q_BSX, config.num_heads)).flatten(-2)
            k_BSX = self.k_norm(split_heads(k_BSX, config.num_kv_heads)).flatten(-2)
        rotation = rotation_of(config)
        if rotation is not None:
            q_BSX = apply_rope(q_BSX, context.cos_sin[rotation], config.num_heads)
            k_BSX = apply_rope(k_BSX, context.cos_sin[rotation], config.num_kv_heads)
        attended_BSX = attend(q_BSX, k_BSX, v_BSX, config, context.masks[config])
        y_BSH: torch.Tensor = self.o_proj(attended_BSX)
        return y_BSH

    def project(self, x_BSH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [.., N * D], k and v [.., K * D] of x."""
        if self.config.packed:
            sizes = [self.q_size, self.kv_size, self.kv_size]
            q_BSX, k_BSX, v_BSX = self.qkv_proj(x_BSH).split(sizes, dim=-1)
            return q_BSX, k_BSX, v_BSX
        return self.q_proj(x_BSH), self.k_proj(x_BSH), self.v_proj(x_BSH)


class CrossAttention(Attention):
    """Queries of the decoder look at the encoder's last hidden state."""

    def forward(self, x_BSH: torch.Tensor, context: Context) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        y_BTH = context.encoder
        assert y_BTH is not None, "a model with cross-attention has an encoder"
        attended_BSX = attend(
            self.q_proj(x_BSH),
            self.k_proj(y_BTH),
            self.v_proj(y_BTH),
            self.config,
            context.encoder_mask,
        )
        y_BSH: torch.Tensor = self.o_proj(attended_BSX)
        return y_BSH


def build_attention(config: AttentionConfig, hidden_size: int, eps: float) -> nn.Module:
    """The self-attention that `config` names; eps: of the norms inside latent attention."""
    if config.latent is not None:
        return LatentAttention(config, hidden_size, eps)
    return Attention(config, hidden_size)
