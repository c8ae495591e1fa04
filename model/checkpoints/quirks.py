"""Every oddity of tensor names and layouts, in one place: stored name -> ours, stored layout -> torch's.

Hugging Face   model.layers.0.mlp.up_proj.weight -> layers.0.mlp.up_proj.weight
GGUF           blk.0.ffn_up.weight               -> layers.0.mlp.up_proj.weight, q and k rows un-permuted
"""

import re

import torch

from ..config import ModelConfig

_GGUF_ROOT = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNKNOWN = "? "  # starts no parameter name
GGUF_ROPE_FACTORS = "rope_freqs.weight"  # no weight: RopeConfig holds it
_GGUF_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def name_from_hf(stored: str, config: ModelConfig) -> str | None:
    """Our name of a tensor in a Hugging Face file; None for one that carries nothing of its own.

    Those are the rotary frequencies that old versions stored, and the copy of the embedding that some files
    keep as the head although tie_word_embeddings is true (transformers ignores it too). An unknown name comes
    back as one that is none of ours, for check_names to refuse.
    """
    if stored.endswith(".rotary_emb.inv_freq"):
        return None
    if stored == "lm_head.weight":
        return None if config.tie_word_embeddings else stored
    return stored.removeprefix("model.") if stored.startswith("model.") else _UNKNOWN + stored


def name_from_gguf(stored: str) -> str | None:
    """Our name of a tensor in a GGUF file of the Llama family; None for the RoPE factors.

    An unknown name comes back as one that is none of ours, for check_names to refuse.
    """
    if stored == GGUF_ROPE_FACTORS:
        return None
    block = _GGUF_BLOCK_NAME.fullmatch(stored)
    if block and block[2] in _GGUF_BLOCK:
        return f"layers.{block[1]}.{_GGUF_BLOCK[block[2]]}.weight"
    return _GGUF_ROOT.get(stored, _UNKNOWN + stored)


def layout_from_gguf(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """Bring one tensor of a Llama-family GGUF into our layout.

    GGUF stores the rows of q and k so that rotary pairs are neighbours (0, D/2, 1, D/2 + 1, ...); we rotate
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
