"""config.json of the Llama family -> ModelConfig; absent keys mean what transformers makes of them."""

from dataclasses import replace

from ..config import AttentionConfig, FeedForwardConfig, LayerException, ModelConfig, NormConfig
from ..fields import Fields
from .hf_fields import UNSUPPORTED, exceptions_of, heads, windowed_layers
from .hf_rope import rope_from_hf


def llama(fields: Fields) -> ModelConfig:
    """LlamaForCausalLM."""
    bias = fields.flag("attention_bias", False)
    attention = replace(_attention(fields), bias=bias, out_bias=bias)
    feed_forward = FeedForwardConfig(
        fields.whole("intermediate_size"), bias=fields.flag("mlp_bias", False)
    )
    return _model(fields, attention, feed_forward)


def mistral(fields: Fields) -> ModelConfig:
    """MistralForCausalLM: a window in every layer, where one is stated."""
    window = _window(fields, absent=4096)
    attention = replace(_attention(fields, kv_heads=8), window=window)
    return _model(fields, attention, FeedForwardConfig(fields.whole("intermediate_size")))


def qwen2(fields: Fields) -> ModelConfig:
    """Qwen2ForCausalLM (Qwen2, Qwen2.5): biases of q, k and v; windows in the upper layers where they are switched on."""
    attention = replace(_attention(fields), bias=True)
    feed_forward = FeedForwardConfig(fields.whole("intermediate_size"))
    return _with_windows(fields, _model(fields, attention, feed_forward))


def qwen3(fields: Fields) -> ModelConfig:
    """Qwen3ForCausalLM: a norm over each head of q and k."""
    bias = fields.flag("attention_bias", False)
    norm = NormConfig(fields.number("rms_norm_eps", 1e-6))
    attention = replace(_attention(fields), qk_norm=norm, bias=bias, out_bias=bias)
    feed_forward = FeedForwardConfig(fields.whole("intermediate_size"))
    return _with_windows(fields, _model(fields, attention, feed_forward))


def phi3(fields: Fields) -> ModelConfig:
    """Phi3ForCausalLM: q, k, v in one projection, gate and up in one."""
    attention = replace(_attention(fields), packed=True, window=_window(fields))
    feed_forward = FeedForwardConfig(fields.whole("intermediate_size"), packed=True)
    return _model(fields, attention, feed_forward)


def _attention(fields: Fields, kv_heads: int | None = None) -> AttentionConfig:
    sizes = heads(fields, kv_heads=kv_heads)
    return AttentionConfig(*sizes, rope_from_hf(fields, sizes[2]))


def _window(fields: Fields, absent: int | None = None) -> int | None:
    """The window; null means none, an absent key what the family makes of it."""
    if "sliding_window" not in fields.values:
        return absent
    return fields.whole("sliding_window", 0) or None


def _model(
    fields: Fields, attention: AttentionConfig, feed_forward: FeedForwardConfig
) -> ModelConfig:
    fields.require("hidden_act", "silu", absent="silu", why=UNSUPPORTED)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=fields.whole("hidden_size"),
        num_layers=fields.whole("num_hidden_layers"),
        max_position_embeddings=fields.whole("max_position_embeddings", 2048),
        norm=NormConfig(fields.number("rms_norm_eps", 1e-6)),
        attention=attention,
        feed_forward=feed_forward,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
    )


def _with_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows where use_sliding_window is on: by layer_types, else from layer max_window_layers upwards."""
    window = _window(fields, absent=4096)
    if window is None or not fields.flag("use_sliding_window", False):
        return config
    first = fields.whole("max_window_layers", 28)
    kinds = ["full_attention", "sliding_attention"]
    default = [kinds[layer >= first] for layer in range(config.num_layers)]
    windowed = windowed_layers(fields, config.num_layers, default)
    attention, layers, other = exceptions_of(
        windowed, replace(config.attention, window=window), config.attention
    )
    exceptions = (LayerException(layers, other),) if layers else ()
    return replace(config, attention=attention, exceptions=exceptions)
