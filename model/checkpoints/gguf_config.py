"""GGUF metadata -> ModelConfig (keys: the GGUF specification, ggml-org/ggml docs/gguf.md; values: llama.cpp's loader).

What llama.cpp takes as known of an architecture (activation, placement, which layers have a window) is here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import UsageError
from ..config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    FrequencyFactors,
    HeadConfig,
    LayerException,
    LinearScaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
    RopeScaling,
)
from ..fields import Fields
from .hf_fields import stated_head_dim

_UNSUPPORTED = "Not supported yet"


@dataclass(frozen=True, slots=True)
class _Tensors:
    """What only the tensors tell; see config_from_gguf."""

    vocab_size: int
    tied: bool
    rope_factors: tuple[float, ...] | None


def config_from_gguf(
    fields: Fields, *, vocab_size: int, tied: bool, rope_factors: tuple[float, ...] | None
) -> ModelConfig:
    """The configuration that a GGUF header describes.

    vocab_size, tied and rope_factors come from the tensors: rows of the embedding, absence of a head,
    rope_freqs. Raises UsageError for an architecture or value that is not supported, naming it.
    """
    family = fields.text("general.architecture")
    if family not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(
            fields.source, found=f"general.architecture {family!r}", fix=f"Supported: {known}"
        )
    plain = _llama(fields, family, _Tensors(vocab_size, tied, rope_factors))
    return ARCHITECTURES[family](plain, fields)


def _llama(fields: Fields, family: str, tensors: _Tensors) -> ModelConfig:
    """What the Llama layout says, which the other architectures change."""
    hidden_size = fields.whole(f"{family}.embedding_length")
    num_heads = fields.whole(f"{family}.attention.head_count")
    head_dim = stated_head_dim(fields, f"{family}.attention.key_length", hidden_size, num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        fields.require(f"{family}.{key}", head_dim, absent=head_dim, why=_UNSUPPORTED)
    fields.require(f"{family}.expert_count", 0, absent=0, why=_UNSUPPORTED)
    return ModelConfig(
        vocab_size=tensors.vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.whole(f"{family}.block_count"),
        max_position_embeddings=fields.whole(f"{family}.context_length"),
        norm=NormConfig(_decimal(fields.number(f"{family}.attention.layer_norm_rms_epsilon"))),
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=fields.whole(f"{family}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rope=RopeConfig(
                _decimal(fields.number(f"{family}.rope.freq_base", 10000.0)),
                _scaling(fields, family, tensors.rope_factors),
            ),
        ),
        feed_forward=FeedForwardConfig(fields.whole(f"{family}.feed_forward_length")),
        tie_word_embeddings=tensors.tied,
    )


def _as_it_is(config: ModelConfig, fields: Fields) -> ModelConfig:
    return config


def _qwen2(config: ModelConfig, fields: Fields) -> ModelConfig:
    return replace(config, attention=replace(config.attention, bias=True))


def _qwen3(config: ModelConfig, fields: Fields) -> ModelConfig:
    return replace(config, attention=replace(config.attention, qk_norm=config.norm))


def _gemma2(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Softcaps are stated; 27B alone scales by hidden / heads."""
    scale = None
    if config.num_layers == 46:  # as llama.cpp tells 27B
        scale = (config.hidden_size / config.attention.num_heads) ** -0.5
    everything = replace(
        config.attention,
        softcap=_decimal(fields.number("gemma2.attn_logit_softcapping", 50.0)),
        scale=scale,
    )
    cap = _decimal(fields.number("gemma2.final_logit_softcapping", 30.0))
    local = replace(everything, window=fields.whole("gemma2.attention.sliding_window", 4096))
    return replace(_gemma(config, local, everything, every=2), head=HeadConfig(softcap=cap))


def _gemma3(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Five of six layers have a window, and RoPE with a base of its own; 27B alone scales by hidden / heads."""
    scale = None
    if config.num_layers == 62:  # as llama.cpp tells 27B
        scale = (config.hidden_size / config.attention.num_heads) ** -0.5
    everything = replace(config.attention, qk_norm=config.norm, scale=scale)
    base = _decimal(fields.number("gemma3.rope.freq_base_swa", 10000.0))
    local = replace(
        everything,
        rope=RopeConfig(base),
        window=fields.whole("gemma3.attention.sliding_window"),
    )
    return _gemma(config, local, everything, every=6)


def _gemma(
    config: ModelConfig, local: AttentionConfig, everything: AttentionConfig, *, every: int
) -> ModelConfig:
    layers = tuple(range(every - 1, config.num_layers, every))
    return replace(
        config,
        attention=local,
        feed_forward=replace(config.feed_forward, kind="geglu_tanh"),
        placement="sandwich",
        embedding=EmbeddingConfig(scale=config.hidden_size**0.5),
        exceptions=(LayerException(layers, everything),) if layers else (),
    )


ARCHITECTURES: dict[str, Callable[[ModelConfig, Fields], ModelConfig]] = {
    "llama": _as_it_is,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}


def _scaling(
    fields: Fields, family: str, rope_factors: tuple[float, ...] | None
) -> RopeScaling | None:
    kind = fields.text(f"{family}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UsageError(
            fields.source,
            found=f"{family}.rope.scaling.type {kind!r}",
            fix="Supported: none, linear",
        )
    if rope_factors is not None:
        return FrequencyFactors(rope_factors)
    if kind == "linear":
        return LinearScaling(_decimal(fields.number(f"{family}.rope.scaling.factor")))
    return None


def _decimal(number: float) -> float:
    """The shortest decimal that float32 stores as `number`: the file's 1e-5 is 9.99999974e-06."""
    return float(str(np.float32(number)))
