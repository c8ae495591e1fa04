"""What each query may see, and what is added to its scores: one mask per kind of attention, shared by all layers.

    mask[b, n, i, j] = (0 where key j may be seen, HIDDEN elsewhere) + relative bias

A causal attention over everything needs none: the operator's own is_causal says it.

Shapes: B batch, N heads, S queries, T keys.
"""

from collections.abc import Iterable

import torch
from torch import nn

from .config import AttentionConfig

Masks = dict[AttentionConfig, torch.Tensor | None]


class AttentionMasks(nn.Module):
    """The masks of all self-attentions of a model."""

    def __init__(self, attentions: Iterable[AttentionConfig]) -> None:
        super().__init__()
        self.attentions = tuple(attentions)

    def forward(
        self,
        hidden_BSH: torch.Tensor,
        attention_mask_BS: torch.Tensor | None,
        bias_1NSS: torch.Tensor | None,
    ) -> Masks:
        """Each attention's mask [batch or 1, heads or 1, sequence, sequence], None where is_causal is enough.

        attention_mask: 1 for a token, 0 for padding; None for no padding.
        """
        masks: dict[tuple[bool, int | None, bool], torch.Tensor | None] = {}
        found: Masks = {}
        for attention in self.attentions:
            biased = attention.relative_bias is not None
            kind = (attention.causal, attention.window, biased)
            if kind not in masks:
                bias = bias_1NSS if biased else None
                masks[kind] = _mask(attention, hidden_BSH, attention_mask_BS, bias)
            found[attention] = masks[kind]
        return found


def _mask(
    attention: AttentionConfig,
    hidden_BSH: torch.Tensor,
    attention_mask_BS: torch.Tensor | None,
    bias_1NSS: torch.Tensor | None,
) -> torch.Tensor | None:
    keep = None if attention_mask_BS is None else _tokens(attention_mask_BS)
    needed = attention.window is not None or keep is not None or bias_1NSS is not None
    seen_11SS = _reach(attention, hidden_BSH) if needed else None
    if seen_11SS is not None:
        keep = seen_11SS if keep is None else keep & seen_11SS
    if keep is None:
        return bias_1NSS
    hiding = additive(keep, hidden_BSH.dtype)
    if seen_11SS is None:
        hiding = _for_queries(hiding, hidden_BSH.shape[1])
    if bias_1NSS is None:
        return hiding
    return bias_1NSS + hiding


def padding_mask(attention_mask_BT: torch.Tensor, hidden_BSH: torch.Tensor) -> torch.Tensor:
    """What hides padding keys from the queries of `hidden_BSH`: [batch, 1, sequence, keys], in its type."""
    hiding = additive(_tokens(attention_mask_BT), hidden_BSH.dtype)
    return _for_queries(hiding, hidden_BSH.shape[1])


def _for_queries(mask: torch.Tensor, sequence: int) -> torch.Tensor:
    """One row per query: ONNX Runtime's Attention does not broadcast over them (1.32), although the operator says so."""
    return mask.expand(-1, -1, sequence, -1)


def _tokens(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """bool [batch, 1, 1, keys]."""
    return (attention_mask_BT != 0)[:, None, None, :]


def _reach(attention: AttentionConfig, hidden_BSH: torch.Tensor) -> torch.Tensor | None:
    """bool [1, 1, S, S]: key j with i - window < j <= i, where the attention is causal and has a window."""
    key_S = torch.arange(hidden_BSH.shape[1], device=hidden_BSH.device)
    query_S1 = key_S.unsqueeze(-1)
    seen_SS = key_S <= query_S1 if attention.causal else None
    if attention.window is not None:
        near_SS = key_S > query_S1 - attention.window
        seen_SS = near_SS if seen_SS is None else seen_SS & near_SS
    return None if seen_SS is None else seen_SS[None, None]


def additive(keep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `keep` is true, elsewhere half the lowest finite number of `dtype` (of float32 for wider types).

    Its sum with a score stays finite and its exponential is 0; a row that hides every key stays finite, where -inf
    would give NaN. Everything bool is joined before, so that no key is hidden twice.
    """
    hidden = -32752.0 if dtype == torch.float16 else -1.5e38
    return torch.where(keep, 0.0, hidden).to(dtype)
