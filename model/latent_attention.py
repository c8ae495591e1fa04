"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv 2412.19437).

    c     = norm(x Wa^T)                             the latent that a cache would hold, with the rotated key
    k, v  = c Wb^T                                   per head: a key part without position, and the value
    k_r   = rotate(x Wr^T)                           one rotated key part, the same for all heads
    q     = norm(x Wqa^T) Wqb^T                      per head: a part without position, and a rotated one
    y     = attend([q, rotate(q_r)], [k, k_r], v) Wo^T

Shapes: B batch, S sequence, H hidden, N heads, P head elements without position, R rotated ones, V value size.
"""

import torch
from torch import nn

from .config import AttentionConfig
from .context import Context
from .norms import RMSNorm
from .rope import apply_rope, rotation_of, split_heads
from .scores import attend


class LatentAttention(nn.Module):
    """Attention whose keys and values grow from a latent vector; named as Hugging Face names its parts."""

    def __init__(self, config: AttentionConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        latent, num_heads = config.latent, config.num_heads
        assert latent is not None, "build_attention asks"
        self.config, self.latent = config, latent
        self.plain_dim = config.head_dim - latent.rope_dim
        q_size = num_heads * config.head_dim
        if latent.q_lora_rank is None:
            self.q_proj = nn.Linear(hidden_size, q_size, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden_size, latent.q_lora_rank, bias=config.bias)
            self.q_a_layernorm = RMSNorm(latent.q_lora_rank, eps)
            self.q_b_proj = nn.Linear(latent.q_lora_rank, q_size, bias=False)
        kv_a_size = latent.kv_lora_rank + latent.rope_dim
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_a_size, bias=config.bias)
        self.kv_a_layernorm = RMSNorm(latent.kv_lora_rank, eps)
        kv_size = num_heads * (self.plain_dim + latent.value_dim)
        self.kv_b_proj = nn.Linear(latent.kv_lora_rank, kv_size, bias=False)
        self.o_proj = nn.Linear(num_heads * latent.value_dim, hidden_size, bias=config.out_bias)

    def forward(self, x_BSH: torch.Tensor, context: Context) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        config, latent, num_heads = self.config, self.latent, self.config.num_heads
        rotation = rotation_of(config)
        assert rotation is not None, "AttentionConfig.check asks"
        cos_sin = context.cos_sin[rotation]
        q_BSND = split_heads(self._queries(x_BSH), num_heads)
        q_BSNP, q_BSNR = torch.split(q_BSND, [self.plain_dim, latent.rope_dim], dim=-1)
        q_rotated_BSX = apply_rope(q_BSNR.flatten(-2), cos_sin, num_heads)
        latent_BSL, k_BSR = self.kv_a_proj_with_mqa(x_BSH).split(
            [latent.kv_lora_rank, latent.rope_dim], dim=-1
        )
        k_rotated_BS1R = apply_rope(k_BSR, cos_sin, 1).unsqueeze(2)
        kv_BSND = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent_BSL)), num_heads)
        k_BSNP, v_BSNV = torch.split(kv_BSND, [self.plain_dim, latent.value_dim], dim=-1)
        q_BSX = torch.cat((q_BSNP, split_heads(q_rotated_BSX, num_heads)), dim=-1).flatten(-2)
        k_rotated_BSNR = k_rotated_BS1R.expand(-1, -1, num_heads, -1)
        k_BSX = torch.cat((k_BSNP, k_rotated_BSNR), dim=-1).flatten(-2)
        attended_BSX = attend(q_BSX, k_BSX, v_BSNV.flatten(-2), config, context.masks[config])
        y_BSH: torch.Tensor = self.o_proj(attended_BSX)
        return y_BSH

    def _queries(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, heads * (P + R)]."""
        if self.latent.q_lora_rank is None:
            q_BSX: torch.Tensor = self.q_proj(x_BSH)
        else:
            q_BSX = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BSH)))
        return q_BSX
