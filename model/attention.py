"""Causal self-attention with grouped queries.

    attention(q, k, v) = softmax(q k^T / sqrt(D) + causal mask) v    per head   (arXiv 1706.03762)

N query heads share K key-value heads, N / K each (grouped queries: Ainslie et al. 2023, arXiv 2305.13245;
K = N is multi-head, K = 1 multi-query attention).

Shapes: B batch, S sequence, H hidden, N query heads, K key-value heads, D head size, X heads * D.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .config import AttentionConfig
from .exporting import exporting
from .rope import CosSin, apply_rope, split_heads


class Attention(nn.Module):
    """Project to q, k, v; rotate q and k; attend to this and earlier positions; project back."""

    def __init__(self, config: AttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, hidden_size, bias=False)

    def forward(self, x_BSH: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        q_BSX = apply_rope(self.q_proj(x_BSH), cos_sin, self.config.num_heads)
        k_BSX = apply_rope(self.k_proj(x_BSH), cos_sin, self.config.num_kv_heads)
        v_BSX = self.v_proj(x_BSH)
        attended_BSX = causal_attention(q_BSX, k_BSX, v_BSX, self.config)
        y_BSH: torch.Tensor = self.o_proj(attended_BSX)
        return y_BSH


def causal_attention(
    q_BSX: torch.Tensor, k_BSX: torch.Tensor, v_BSX: torch.Tensor, config: AttentionConfig
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v over this and earlier positions, heads side by side on the last axis.

    Exported as ONNX Attention (3-D form, is_causal), without the attribute softmax_precision, which
    TensorRT's parser refuses.
    """
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    if exporting():
        attended_BSX, *_ = torch.onnx.ops.attention(
            q_BSX,
            k_BSX,
            v_BSX,
            is_causal=True,
            q_num_heads=num_heads,
            kv_num_heads=num_kv_heads,
            scale=config.head_dim**-0.5,
        )
        return attended_BSX
    q_BNSD = split_heads(q_BSX, num_heads).transpose(1, 2)
    k_BKSD = split_heads(k_BSX, num_kv_heads).transpose(1, 2)
    v_BKSD = split_heads(v_BSX, num_kv_heads).transpose(1, 2)
    attended_BNSD = F.scaled_dot_product_attention(
        q_BNSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=num_kv_heads < num_heads
    )
    return attended_BNSD.transpose(1, 2).flatten(-2)
