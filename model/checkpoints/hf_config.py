"""Hugging Face's config.json -> ModelConfig.

Both spellings of the positions are read: rope_theta with rope_scaling, and rope_parameters (transformers 5).
"""

from ...core.errors import UsageError
from ..config import (
    AttentionConfig,
    FeedForwardConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
    RopeScaling,
)
from ..fields import Fields


def config_from_hf(fields: Fields) -> ModelConfig:
    """The configuration that a config.json describes.

    Raises UsageError for an architecture, option or value that is not supported, naming it.
    """
    names = fields.array("architectures", [])
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        found = f"architectures {names}" if names else "no architectures"
        raise UsageError(fields.source, found=found, fix=f"Supported: {known}")
    return ARCHITECTURES[names[0]](fields)


def _llama(fields: Fields) -> ModelConfig:
    """LlamaForCausalLM; absent keys mean what transformers' LlamaConfig makes of them."""
    unsupported = "Not supported yet"
    fields.require("hidden_act", "silu", absent="silu", why=unsupported)
    fields.require("attention_bias", False, absent=False, why=unsupported)
    fields.require("mlp_bias", False, absent=False, why=unsupported)
    fields.require("quantization_config", None, absent=None, why=unsupported)
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = stated_head_dim(fields, "head_dim", hidden_size, num_heads)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.whole("num_hidden_layers"),
        max_position_embeddings=fields.whole("max_position_embeddings", 2048),
        norm=NormConfig(fields.number("rms_norm_eps", 1e-6)),
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=fields.whole("num_key_value_heads", num_heads),
            head_dim=head_dim,
            rope=_rope(fields),
        ),
        feed_forward=FeedForwardConfig(fields.whole("intermediate_size")),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
    )


ARCHITECTURES = {"LlamaForCausalLM": _llama}


def stated_head_dim(fields: Fields, key: str, hidden_size: int, num_heads: int) -> int:
    """The value of `key`, else hidden_size / num_heads; UsageError unless that is whole."""
    if fields.values.get(key) is not None:
        return fields.whole(key)
    if num_heads < 1 or hidden_size % num_heads:
        raise UsageError(
            fields.source,
            found=f"hidden size {hidden_size} is no multiple of {num_heads} heads",
            fix=f"State {key}, or choose sizes that divide",
        )
    return hidden_size // num_heads


def _rope(fields: Fields) -> RopeConfig:
    """The positions, wherever this version of the file states them."""
    rope = fields.fields("rope_parameters") or fields.fields("rope_scaling")
    theta = fields.number("rope_theta", 10000.0)
    if rope is None:
        return RopeConfig(theta)
    theta = rope.number("rope_theta", theta)
    rope.require("partial_rotary_factor", 1.0, absent=1.0, why="Not supported yet")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise UsageError(rope.source, found=f"rope_type {kind!r}", fix=f"Supported: {known}")
    return RopeConfig(theta, _SCALINGS[kind](rope))


def _no_scaling(rope: Fields) -> RopeScaling | None:
    return None


def _linear(rope: Fields) -> RopeScaling | None:
    return LinearScaling(rope.number("factor"))


def _llama3(rope: Fields) -> RopeScaling | None:
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.whole("original_max_position_embeddings"),
    )


_SCALINGS = {"default": _no_scaling, "linear": _linear, "llama3": _llama3}
