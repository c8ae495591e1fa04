"""Every oddity of tensor names and layouts, in one place: stored name -> ours, stored layout -> torch's.

Hugging Face   model.layers.0.mlp.up_proj.weight -> layers.0.mlp.up_proj.weight
GGUF           blk.0.ffn_up.weight               -> layers.0.mlp.up_proj.weight, see gguf_names.py

Oddities of layout: GPT-2's Conv1D stores [in, out]; Gemma's norms multiply by 1 + w and store w; DeepSeek rotates
neighbours where we rotate halves, so its rows are reordered; GGUF's Llama does the same.
"""

import torch

from ..config import ModelConfig
from .dialect import Dialect, Rules

_WEIGHT = r"\.(weight|bias)"
_HF: Rules = (
    (r".*\.rotary_emb\.inv_freq", None),  # frequencies that old versions stored
    (r"model\.(?P<rest>.+)", r"\g<rest>"),
    (r"lm_head\.weight", "lm_head.weight"),
)

_GPT2: Rules = (
    (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", None),  # masks
    (r"(transformer\.)?wte\.weight", "embed_tokens.weight"),
    (r"(transformer\.)?wpe\.weight", "embeddings.positions.weight"),
    (rf"(transformer\.)?h\.(\d+)\.ln_1{_WEIGHT}", r"layers.\2.input_layernorm.\3"),
    (rf"(transformer\.)?h\.(\d+)\.ln_2{_WEIGHT}", r"layers.\2.post_attention_layernorm.\3"),
    (rf"(transformer\.)?h\.(\d+)\.attn\.c_attn{_WEIGHT}", r"layers.\2.self_attn.qkv_proj.\3"),
    (rf"(transformer\.)?h\.(\d+)\.attn\.c_proj{_WEIGHT}", r"layers.\2.self_attn.o_proj.\3"),
    (rf"(transformer\.)?h\.(\d+)\.mlp\.c_fc{_WEIGHT}", r"layers.\2.mlp.up_proj.\3"),
    (rf"(transformer\.)?h\.(\d+)\.mlp\.c_proj{_WEIGHT}", r"layers.\2.mlp.down_proj.\3"),
    (rf"(transformer\.)?ln_f{_WEIGHT}", r"norm.\2"),
    (r"lm_head\.weight", "lm_head.weight"),
)

_LAYER_NORM = r"\.LayerNorm\.(weight|bias)"
_BERT: Rules = (
    (r"(bert\.)?embeddings\.position_ids", None),
    (r"(bert\.)?embeddings\.word_embeddings\.weight", "embed_tokens.weight"),
    (r"(bert\.)?embeddings\.position_embeddings\.weight", "embeddings.positions.weight"),
    (r"(bert\.)?embeddings\.token_type_embeddings\.weight", "embeddings.types.weight"),
    (rf"(bert\.)?embeddings{_LAYER_NORM}", r"embeddings.norm.\2"),
    *(
        (
            rf"(bert\.)?encoder\.layer\.(\d+)\.attention\.self\.{theirs}{_WEIGHT}",
            rf"layers.\2.self_attn.{ours}.\3",
        )
        for theirs, ours in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
    ),
    (
        rf"(bert\.)?encoder\.layer\.(\d+)\.attention\.output\.dense{_WEIGHT}",
        r"layers.\2.self_attn.o_proj.\3",
    ),
    (
        rf"(bert\.)?encoder\.layer\.(\d+)\.attention\.output{_LAYER_NORM}",
        r"layers.\2.post_attention_layernorm.\3",
    ),
    (
        rf"(bert\.)?encoder\.layer\.(\d+)\.intermediate\.dense{_WEIGHT}",
        r"layers.\2.mlp.up_proj.\3",
    ),
    (rf"(bert\.)?encoder\.layer\.(\d+)\.output\.dense{_WEIGHT}", r"layers.\2.mlp.down_proj.\3"),
    (
        rf"(bert\.)?encoder\.layer\.(\d+)\.output{_LAYER_NORM}",
        r"layers.\2.post_feedforward_layernorm.\3",
    ),
    (rf"(bert\.)?pooler\.dense{_WEIGHT}", r"lm_head.dense.\2"),
    (rf"cls\.predictions\.transform\.dense{_WEIGHT}", r"lm_head.dense.\1"),
    (rf"cls\.predictions\.transform{_LAYER_NORM}", r"lm_head.norm.\1"),
    (r"cls\.predictions\.bias", "lm_head.bias"),
    (r"cls\.predictions\.decoder\.bias", None),  # a copy of the line above
    (r"cls\.predictions\.decoder\.weight", "lm_head.weight"),
)

_T5_PARTS = (
    (r"layer\.0\.SelfAttention\.(?P<part>[qkvo])\.weight", r"self_attn.\g<part>_proj.weight"),
    (r"layer\.0\.layer_norm\.weight", "input_layernorm.weight"),
    (r"layer\.[12]\.DenseReluDense\.wi_0\.weight", "mlp.gate_proj.weight"),
    (r"layer\.[12]\.DenseReluDense\.wi_1\.weight", "mlp.up_proj.weight"),
    (r"layer\.[12]\.DenseReluDense\.wo\.weight", "mlp.down_proj.weight"),
)


def _t5_stack(theirs: str, ours: str, parts: Rules) -> Rules:
    """The rules of one of T5's stacks, whose blocks are layers of ours."""
    bias = r"block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight"
    return (
        (rf"{theirs}\.embed_tokens\.weight", None),  # copies of shared.weight
        (rf"{theirs}\.{bias}", f"{ours}relative_bias.weight"),
        (rf"{theirs}\.final_layer_norm\.weight", f"{ours}norm.weight"),
        *(
            (rf"{theirs}\.block\.(?P<layer>\d+)\.{stored}", rf"{ours}layers.\g<layer>.{name}")
            for stored, name in parts
        ),
    )


_T5_ENCODER: Rules = (
    *_T5_PARTS,
    (r"layer\.1\.layer_norm\.weight", "post_attention_layernorm.weight"),
)
_T5_DECODER: Rules = (
    *_T5_PARTS,
    (r"layer\.1\.EncDecAttention\.(?P<part>[qkvo])\.weight", r"cross_attn.\g<part>_proj.weight"),
    (r"layer\.1\.layer_norm\.weight", "pre_cross_attention_layernorm.weight"),
    (r"layer\.2\.layer_norm\.weight", "post_attention_layernorm.weight"),
)
_T5: Rules = (
    (r"shared\.weight", "embed_tokens.weight"),
    (r"lm_head\.weight", "lm_head.weight"),
    *_t5_stack("encoder", "encoder.", _T5_ENCODER),
    *_t5_stack("decoder", "", _T5_DECODER),
)
_T5_ALONE: Rules = (
    (r"shared\.weight", "embed_tokens.weight"),
    *_t5_stack("encoder", "", _T5_ENCODER),
)

_DEEPSEEK: Rules = (
    (
        r"model\.(?P<layer>layers\.\d+\.mlp\.experts)\.(?P<expert>\d+)\.(?P<part>\w+)\.weight",
        r"\g<layer>.\g<part>.weight",
    ),
    *_HF,
)


def transposed_conv1d(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """GPT-2's Conv1D stores the weight of a linear as [in, out]."""
    return tensor.t() if tensor.ndim == 2 and ".layers." in f".{name}" else tensor


def norms_plus_one(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """Gemma multiplies by 1 + w where others multiply by w."""
    return tensor + 1 if name.removesuffix(".weight").endswith("norm") else tensor


def halves_from_neighbours(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """DeepSeek rotates neighbouring elements; we rotate halves: rows [pair, half] of a rotated part -> [half, pair]."""
    latent = config.attention.latent
    assert latent is not None, "DeepSeek has latent attention"
    if name.endswith((".q_b_proj.weight", ".self_attn.q_proj.weight")):
        heads = tensor.view(config.attention.num_heads, config.attention.head_dim, -1)
    elif name.endswith(".kv_a_proj_with_mqa.weight"):
        heads = tensor.unsqueeze(0)
    else:
        return tensor
    plain, rotated = torch.split(heads, [heads.shape[1] - latent.rope_dim, latent.rope_dim], dim=1)
    by_pair = rotated.reshape(len(heads), latent.rope_dim // 2, 2, -1)
    turned = by_pair.transpose(1, 2).flatten(1, 2)
    return torch.cat((plain, turned), dim=1).reshape(tensor.shape)


HF = Dialect(_HF)
HF_GEMMA = Dialect(_HF, norms_plus_one)
HF_DEEPSEEK = Dialect(_DEEPSEEK, halves_from_neighbours)
HF_DEEPSEEK_HALVES = Dialect(_DEEPSEEK)  # rope_interleave is false
HF_GPT2 = Dialect(_GPT2, transposed_conv1d)
HF_BERT = Dialect(_BERT)
HF_T5 = Dialect(_T5)
HF_T5_ENCODER = Dialect(_T5_ALONE)


def for_model(dialect: Dialect, config: ModelConfig) -> Dialect:
    """The dialect of a file of this model: what carries nothing of its own there is known only with the configuration.

    A tied head: a stored copy of the embedding. Not so for T5: transformers 5 calls v1.1 tied whose files have a head
    of its own, which must not be lost. DeepSeek: the layers behind the last, which predict further tokens.
    """
    nothing: Rules = ()
    if config.tie_word_embeddings and dialect is not HF_T5:
        nothing = ((r"lm_head\.weight|cls\.predictions\.decoder\.weight", None),)
    if dialect in (HF_DEEPSEEK, HF_DEEPSEEK_HALVES):
        nothing = (*nothing, (rf"model\.layers\.{config.num_layers}\..+", None))
    return Dialect((*nothing, *dialect.rules), dialect.layout)
