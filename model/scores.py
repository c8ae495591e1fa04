"""The core of every attention: scores, softmax, weighted values.

    y = softmax(cap(scale * q k^T) + mask) v    per head        cap(s) = softcap * tanh(s / softcap)

Shapes: B batch, S queries, T keys, N query heads, K key-value heads, D head size, X heads * D.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F  # noqa: N812

from .config import AttentionConfig
from .exporting import exporting
from .rope import split_heads

Attribute = (
    int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
)


def attend(
    q_BSX: torch.Tensor,
    k_BTX: torch.Tensor,
    v_BTX: torch.Tensor,
    config: AttentionConfig,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """[batch, queries, heads * value size], heads side by side on the last axis.

    mask: added to the scores, broadcast to [batch, heads, queries, keys]; it says all that hides keys. None: causal
    where the config is. Exported as ONNX Attention (3-D form), without the attribute softmax_precision,
    which TensorRT's parser refuses.
    """
    is_causal = config.causal and mask is None
    if exporting():
        return _emit(q_BSX, k_BTX, v_BTX, config, mask)
    q_BNSD = split_heads(q_BSX, config.num_heads).transpose(1, 2)
    k_BKTD = split_heads(k_BTX, config.num_kv_heads).transpose(1, 2)
    v_BKTD = split_heads(v_BTX, config.num_kv_heads).transpose(1, 2)
    grouped = config.num_kv_heads < config.num_heads
    if config.softcap is not None:
        attended_BNSD = _capped(q_BNSD, k_BKTD, v_BKTD, config, mask)
    else:
        attended_BNSD = F.scaled_dot_product_attention(
            q_BNSD,
            k_BKTD,
            v_BKTD,
            attn_mask=mask,
            is_causal=is_causal,
            scale=config.score_scale,
            enable_gqa=grouped,
        )
    return attended_BNSD.transpose(1, 2).flatten(-2)


def _emit(
    q_BSX: torch.Tensor,
    k_BTX: torch.Tensor,
    v_BTX: torch.Tensor,
    config: AttentionConfig,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One Attention node. Not by torch.onnx.ops.attention, which takes values to be as long as queries."""
    attributes: dict[str, Attribute] = {
        "q_num_heads": config.num_heads,
        "kv_num_heads": config.num_kv_heads,
        "scale": config.score_scale,
    }
    if config.causal and mask is None:
        attributes["is_causal"] = 1
    if config.softcap is not None:
        attributes["softcap"] = config.softcap
    inputs = (q_BSX, k_BTX, v_BTX) if mask is None else (q_BSX, k_BTX, v_BTX, mask)
    shape = (*q_BSX.shape[:-1], config.num_heads * config.value_dim)
    return torch.onnx.ops.symbolic(
        "Attention", inputs, attributes, dtype=q_BSX.dtype, shape=shape, version=23
    )


def _capped(
    q_BNSD: torch.Tensor,
    k_BKTD: torch.Tensor,
    v_BKTD: torch.Tensor,
    config: AttentionConfig,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with a softcap, which torch has no function for; scores in float32 (float64 for float64)."""
    assert config.softcap is not None, "the caller asks"
    groups = config.num_heads // config.num_kv_heads
    k_BNTD, v_BNTD = k_BKTD.repeat_interleave(groups, 1), v_BKTD.repeat_interleave(groups, 1)
    wide = torch.promote_types(q_BNSD.dtype, torch.float32)
    scores_BNST = (q_BNSD @ k_BNTD.mT * config.score_scale).to(wide)
    scores_BNST = config.softcap * torch.tanh(scores_BNST / config.softcap)
    if mask is not None:
        scores_BNST = scores_BNST + mask.to(wide)
    elif config.causal:
        later_ST = torch.ones_like(scores_BNST[0, 0], dtype=torch.bool).triu(1)
        scores_BNST = scores_BNST.masked_fill(later_ST, -torch.inf)
    return scores_BNST.softmax(dim=-1).to(v_BNTD.dtype) @ v_BNTD
