"""Attention (ONNX opset 23 to 25) in every form: heads packed or apart, grouped heads, masks, caches, windows.

    y = softmax(softcap(q k^T * scale) + mask) v

Scores and softmax stay in fp32; the probabilities are rounded to the query's type before they meet the values, as
fused kernels do; products accumulate in fp32. Axes: B batch, N query heads, G key/value heads, S queries, T keys
(past included), D head size.
"""

from dataclasses import dataclass

import torch

from ..values import split_axis
from .registry import Call, Tensor, math

_MAX_SCORES = 1 << 25  # scores held at once, 128 MiB in fp32: longer queries go in parts


@dataclass(frozen=True, slots=True)
class _Cache:
    """Where the queries stand among the keys: query i has position offset + i."""

    offset: Tensor  # int64[B], or one entry where all sequences share it
    valid: Tensor | None  # int64[B]: keys that are not padding


@math("Attention")
def attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Y, present_key, present_value, qk_matmul_output."""
    _check(call, q, past_key, past_value, nonpad_kv_seqlen)
    packed = q.ndim == 3
    q_BNSD = _heads_apart(q, call.get_int("q_num_heads", 0)) if packed else q
    k_BGTD, v_BGTD = (
        _heads_apart(t, call.get_int("kv_num_heads", 0)) if packed else t for t in (k, v)
    )
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k_BGTD = torch.cat([past_key, k_BGTD], 2)
        v_BGTD = torch.cat([past_value, v_BGTD], 2)
    if q_BNSD.shape[1] % k_BGTD.shape[1]:
        raise ValueError(f"{q_BNSD.shape[1]} query heads over {k_BGTD.shape[1]} key heads")
    offset = torch.tensor([past])
    if nonpad_kv_seqlen is not None and past_key is None:
        offset = nonpad_kv_seqlen.reshape(-1) - q_BNSD.shape[2]
    cache = _Cache(offset, None if nonpad_kv_seqlen is None else nonpad_kv_seqlen.reshape(-1))

    y_BNSD, scores = _attend(call, q_BNSD, k_BGTD, v_BGTD, mask, cache)
    y = y_BNSD.transpose(1, 2).flatten(2) if packed else y_BNSD
    return y, k_BGTD, v_BGTD, scores


def _check(
    call: Call,
    q: Tensor,
    past_key: Tensor | None,
    past_value: Tensor | None,
    nonpad_kv_seqlen: Tensor | None,
) -> None:
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value come together")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other")
    heads = call.has("q_num_heads") and call.has("kv_num_heads")
    if q.ndim == 3 and not heads:
        raise ValueError("3-D inputs need q_num_heads and kv_num_heads")
    for name in ("left_window_size", "right_window_size"):
        if call.get_int(name, -1) < -1:
            raise ValueError(f"{name} is {call.get_int(name, -1)}: -1 or more")


def _heads_apart(x_BSH: Tensor, heads: int) -> Tensor:
    return split_axis(x_BSH, 2, (heads, -1)).transpose(1, 2)


def _attend(
    call: Call, q_BNSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, mask: Tensor | None, cache: _Cache
) -> tuple[Tensor, Tensor | None]:
    """Some rows of queries at a time, so that the scores stay small."""
    batch, heads, queries = q_BNSD.shape[:3]
    rows = max(1, _MAX_SCORES // max(1, batch * heads * k_BGTD.shape[2]))
    parts = [
        _attend_rows(call, q_BNSD, k_BGTD, v_BGTD, mask, cache, slice(start, start + rows))
        for start in range(0, max(queries, 1), rows)
    ]
    y = torch.cat([y for y, _ in parts], 2) if len(parts) > 1 else parts[0][0]
    if not call.wants(3):
        return y, None
    return y, torch.cat([scores for _, scores in parts], 2)


def _attend_rows(
    call: Call,
    q_BNSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    mask: Tensor | None,
    cache: _Cache,
    rows: slice,
) -> tuple[Tensor, Tensor]:
    groups, keys, size = k_BGTD.shape[1], k_BGTD.shape[2], q_BNSD.shape[3]
    q = q_BNSD[:, :, rows]
    part = slice(rows.start, rows.start + q.shape[2])
    scale = call.get_float("scale", 0.0) if call.has("scale") else size**-0.5
    root = abs(scale) ** 0.5
    # Grouped heads: the queries of one group are extra rows of one product.
    grouped = split_axis(q * root, 1, (groups, -1)).flatten(2, 3)  # [B, G, N/G * S, D]
    apart = (q.shape[1] // groups, q.shape[2])
    raw = grouped @ (k_BGTD * (root if scale >= 0 else -root)).mT
    raw = split_axis(raw, 2, apart).flatten(1, 2)  # [B, N, S, T]
    cap = call.get_float("softcap", 0.0)
    capped = cap * torch.tanh(raw / cap) if cap > 0 else raw
    bias = _bias(call, mask, cache, part, (q_BNSD.shape[2], keys), capped.dtype)
    biased = capped if bias is None else capped + bias
    weights = torch.softmax(biased, -1)
    if bias is not None:
        empty = torch.isneginf(bias).all(-1, keepdim=True)
        weights = torch.where(empty, torch.zeros((), dtype=weights.dtype), weights)
    rounded = call.rounded(weights, call.dtypes[0])
    spread = split_axis(rounded, 1, (groups, -1)).flatten(2, 3)
    y = split_axis(spread @ v_BGTD, 2, apart).flatten(1, 2)
    return y, (raw, capped, biased, weights)[call.get_int("qk_matmul_output_mode", 0)]


def _bias(
    call: Call,
    mask: Tensor | None,
    cache: _Cache,
    rows: slice,
    sizes: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor | None:
    """What is added to the scores of these query rows: the mask's numbers, and -inf for keys out of reach."""
    queries, keys = sizes
    allowed = _reach(call, cache, rows, keys)
    if mask is not None:
        if mask.shape[-1] < keys:
            short = keys - mask.shape[-1]
            fill = False if mask.dtype == torch.bool else -torch.inf
            mask = torch.nn.functional.pad(mask, (0, short), value=fill)
        if mask.ndim >= 2 and mask.shape[-2] == queries:
            mask = mask[..., rows, :]
        if mask.dtype == torch.bool:
            allowed = mask if allowed is None else allowed & mask
            mask = None
    if allowed is None:
        return mask
    base = torch.zeros((), dtype=dtype) if mask is None else mask
    return torch.where(allowed, base, torch.full((), -torch.inf, dtype=dtype))


def _reach(call: Call, cache: _Cache, rows: slice, keys: int) -> Tensor | None:
    """Which keys each query may see by causality, window and padding: bool [B or 1, 1, S, T]; None for all."""
    key_T = torch.arange(keys)
    position_B1S1 = cache.offset.reshape(-1, 1, 1, 1) + torch.arange(
        rows.start, rows.stop
    ).unsqueeze(-1)
    rules = []
    if call.get_int("is_causal", 0):
        rules.append(key_T <= position_B1S1)
    if (left := call.get_int("left_window_size", -1)) >= 0:
        rules.append(key_T >= position_B1S1 - left)
    if (right := call.get_int("right_window_size", -1)) >= 0:
        rules.append(key_T <= position_B1S1 + right)
    if cache.valid is not None:
        rules.append(key_T < cache.valid.reshape(-1, 1, 1, 1))
    reach = None
    for rule in rules:
        reach = rule if reach is None else reach & rule
    return reach
