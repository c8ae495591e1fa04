"""GGUF metadata -> ModelConfig (keys: the GGUF specification, ggml-org/ggml docs/gguf.md)."""

import numpy as np

from ...core.errors import UsageError
from ..config import (
    AttentionConfig,
    FeedForwardConfig,
    FrequencyFactors,
    LinearScaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
    RopeScaling,
)
from ..fields import Fields
from .hf_config import stated_head_dim

ARCHITECTURES = ("llama",)


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
    unsupported = "Not supported yet"
    hidden_size = fields.whole(f"{family}.embedding_length")
    num_heads = fields.whole(f"{family}.attention.head_count")
    head_dim = stated_head_dim(fields, f"{family}.attention.key_length", hidden_size, num_heads)
    fields.require(f"{family}.attention.value_length", head_dim, absent=head_dim, why=unsupported)
    fields.require(f"{family}.rope.dimension_count", head_dim, absent=head_dim, why=unsupported)
    fields.require(f"{family}.expert_count", 0, absent=0, why=unsupported)
    return ModelConfig(
        vocab_size=vocab_size,
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
                _scaling(fields, family, rope_factors),
            ),
        ),
        feed_forward=FeedForwardConfig(fields.whole(f"{family}.feed_forward_length")),
        tie_word_embeddings=tied,
    )


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
