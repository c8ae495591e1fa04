"""The dialects of GGUF files, by general.architecture (ggml-org/llama.cpp, gguf-py/gguf/constants.py).

Gemma's norm weights are stored with the 1 added (convert_hf_to_gguf.py), which is how ours are. Only Llama's q and k
rows are stored for rotating neighbours.
"""

import torch

from ..config import ModelConfig
from .dialect import Dialect, Rules

GGUF_ROPE_FACTORS = "rope_freqs.weight"  # no weight: RopeConfig holds it

_ROOT: Rules = (
    (r"rope_freqs\.weight", None),
    (r"token_embd\.weight", "embed_tokens.weight"),
    (r"output_norm\.weight", "norm.weight"),
    (r"output\.weight", "lm_head.weight"),
)
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PRE = _BLOCK | {"ffn_norm": "post_attention_layernorm"}
_SANDWICH = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _rules(block: dict[str, str]) -> Rules:
    parts = (
        (rf"blk\.(\d+)\.{stored}\.(weight|bias)", rf"layers.\1.{ours}.\2")
        for stored, ours in block.items()
    )
    return (*_ROOT, *parts)


def layout_from_gguf(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """Bring one tensor of a Llama GGUF into our layout.

    It stores the rows of q and k so that rotary pairs are neighbours (0, D/2, 1, D/2 + 1, ...); we rotate
    halves: within each head, rows [pair, half] become [half, pair]. Other tensors are as ours.
    """
    if name.endswith(".self_attn.q_proj.weight"):
        num_heads = config.attention.num_heads
    elif name.endswith(".self_attn.k_proj.weight"):
        num_heads = config.attention.num_kv_heads
    else:
        return tensor
    pairs = config.attention.head_dim // 2
    by_pair = tensor.view(num_heads, pairs, 2, -1)
    return by_pair.transpose(1, 2).reshape(tensor.shape)


GGUF: dict[str, Dialect] = {
    "llama": Dialect(_rules(_PRE), layout_from_gguf),
    "qwen2": Dialect(_rules(_PRE)),
    "qwen3": Dialect(_rules(_PRE)),
    "gemma2": Dialect(_rules(_SANDWICH)),
    "gemma3": Dialect(_rules(_SANDWICH)),
}
