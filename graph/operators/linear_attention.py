"""LinearAttention (ONNX opset 27): a matrix state updated step by step, in fp32.

    linear       S = S + k v'
    gated        S = exp(g) S + k v'
    delta        S = S + beta k (v - S' k)'
    gated_delta  S = exp(g) S + beta k (v - exp(g) S' k)'
    out          o = scale * S' q

Axes: B batch, T steps, N query heads, G key/value heads, K key size, V value size.
"""

import torch

from ..values import split_axis
from .registry import Call, Tensor, math


@math("LinearAttention")
def linear_attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Heads packed in the last axis; the output [B, T, N*V] and the state [B, G, K, V]."""
    rule = call.get_str("update_rule", "gated_delta")
    heads, groups = call.get_int("q_num_heads", 0), call.get_int("kv_num_heads", 0)
    q_BTNK, k_BTGK, v_BTGV = (
        split_axis(t, 2, (n, -1)) for t, n in ((q, heads), (k, groups), (v, groups))
    )
    size = q_BTNK.shape[-1]
    scale = call.get_float("scale", 0.0) or size**-0.5
    state = past_state
    if state is None:
        state = torch.zeros(q.shape[0], groups, size, v_BTGV.shape[-1], dtype=q.dtype)
    outputs = []
    for t in range(q.shape[1]):
        key, value = (
            k_BTGK[:, t].unsqueeze(-1),
            v_BTGV[:, t].unsqueeze(-2),
        )  # [B, G, K, 1], [B, G, 1, V]
        if decay is not None and "gated" in rule:
            gate = split_axis(decay[:, t], 1, (groups, -1))  # one entry per head or per key number
            state = state * torch.exp(gate).unsqueeze(-1)
        if "delta" in rule:
            assert beta is not None, "the rule needs beta"
            rate = beta[:, t].unsqueeze(-1).unsqueeze(-1)  # [B, G or 1, 1, 1]
            value = rate * (value - (state * key).sum(-2, keepdim=True))
        state = state + key * value
        query = split_axis(q_BTNK[:, t], 1, (groups, -1))  # [B, G, N/G, K]
        outputs.append((scale * (query @ state)).flatten(1))
    return torch.stack(outputs, 1), state
