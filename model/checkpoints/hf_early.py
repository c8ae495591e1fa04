"""config.json of GPT-2, BERT and T5 v1.1 -> ModelConfig; absent keys mean what transformers makes of them."""

from dataclasses import replace

from ...core.errors import UsageError
from ..config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    ModelConfig,
    NormConfig,
    RelativeBiasConfig,
)
from ..feed_forward_config import FeedForwardKind
from ..fields import Fields
from .hf_fields import UNSUPPORTED, stated_head_dim

_PLAIN: dict[str, FeedForwardKind] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_T5: dict[str, FeedForwardKind] = {
    "relu": "relu",
    "gated-gelu": "geglu_tanh",  # transformers makes gelu_new of it
    "gated-relu": "reglu",
    "gated-silu": "swiglu",
}


def gpt2(fields: Fields) -> ModelConfig:
    """GPT2LMHeadModel."""
    for key, value in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        fields.require(key, value, absent=value, why=UNSUPPORTED)
    hidden_size, num_heads = fields.whole("n_embd"), fields.whole("n_head")
    head_dim = stated_head_dim(fields, "head_dim", hidden_size, num_heads)
    kind = _kind(fields, "activation_function", _PLAIN, "gelu_new")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.whole("n_layer"),
        max_position_embeddings=fields.whole("n_positions"),
        norm=NormConfig(fields.number("layer_norm_epsilon", 1e-5), "layer"),
        attention=AttentionConfig(
            num_heads, num_heads, head_dim, rope=None, bias=True, out_bias=True, packed=True
        ),
        feed_forward=FeedForwardConfig(fields.whole("n_inner", 4 * hidden_size), kind, bias=True),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        embedding=EmbeddingConfig(positions="learned"),
    )


def bert(fields: Fields) -> ModelConfig:
    """BertModel with its pooler (MiniLM's too)."""
    for key, value in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        fields.require(key, value, absent=value, why=UNSUPPORTED)
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = stated_head_dim(fields, "head_dim", hidden_size, num_heads)
    kind = _kind(fields, "hidden_act", _PLAIN, "gelu")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.whole("num_hidden_layers"),
        max_position_embeddings=fields.whole("max_position_embeddings", 512),
        norm=NormConfig(fields.number("layer_norm_eps", 1e-12), "layer"),
        attention=AttentionConfig(
            num_heads,
            num_heads,
            head_dim,
            rope=None,
            bias=True,
            out_bias=True,
            causal=False,
        ),
        feed_forward=FeedForwardConfig(fields.whole("intermediate_size"), kind, bias=True),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        placement="post",
        embedding=EmbeddingConfig(
            positions="learned", num_types=fields.whole("type_vocab_size", 2), norm=True
        ),
        head=HeadConfig("pooled"),
        final_norm=False,
        padding_mask=True,
    )


def masked_bert(fields: Fields) -> ModelConfig:
    """BertForMaskedLM: logits of the token that a mask hides. Its head's activation is gelu, as the model's."""
    fields.require("hidden_act", "gelu", absent="gelu", why=UNSUPPORTED)
    return replace(bert(fields), head=HeadConfig("masked_lm"))


def t5(fields: Fields) -> ModelConfig:
    """T5ForConditionalGeneration: of v1.1 with a gated feed-forward and a head of its own."""
    encoder = _t5_stack(fields, fields.whole("num_layers"), causal=False)
    layers = fields.whole("num_decoder_layers", fields.whole("num_layers"))
    cross = replace(encoder.attention, relative_bias=None)
    decoder = _t5_stack(fields, layers, causal=True)
    return replace(decoder, encoder=encoder, cross_attention=cross)


def t5_encoder(fields: Fields) -> ModelConfig:
    """T5EncoderModel."""
    return _t5_stack(fields, fields.whole("num_layers"), causal=False)


def _t5_stack(fields: Fields, num_layers: int, *, causal: bool) -> ModelConfig:
    num_heads, hidden_size = fields.whole("num_heads"), fields.whole("d_model")
    tied = fields.flag("tie_word_embeddings", True)
    attention = AttentionConfig(
        num_heads,
        num_heads,
        fields.whole("d_kv", 64),
        rope=None,
        scale=1.0,
        causal=causal,
        relative_bias=RelativeBiasConfig(
            fields.whole("relative_attention_num_buckets", 32),
            fields.whole("relative_attention_max_distance", 128),
        ),
    )
    kind = _kind(fields, "feed_forward_proj", _T5, "relu")
    scaled = fields.flag("scale_decoder_outputs", tied)  # v1.1 is neither tied nor scaled
    head = HeadConfig("logits", scale=hidden_size**-0.5 if scaled else 1.0)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=fields.whole("n_positions", 512),
        norm=NormConfig(fields.number("layer_norm_epsilon", 1e-6)),
        attention=attention,
        feed_forward=FeedForwardConfig(fields.whole("d_ff"), kind),
        tie_word_embeddings=tied,
        head=head if causal else HeadConfig("hidden"),
        padding_mask=not causal,
    )


def _kind(
    fields: Fields, key: str, known: dict[str, FeedForwardKind], absent: str
) -> FeedForwardKind:
    """The feed-forward that `key` names; UsageError lists those known."""
    name = fields.text(key, absent)
    if name not in known:
        raise UsageError(
            fields.source, found=f"{key} is {name!r}", fix=f"Supported: {', '.join(known)}"
        )
    return known[name]
