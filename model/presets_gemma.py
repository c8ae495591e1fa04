"""Gemma 2 and 3, Grok-1 and DeepSeek-V3: norms on both sides, softcaps, windows, experts, latent attention.

Sizes from the models' config.json and released code: Gemma 2 arXiv 2408.00118, Gemma 3 2503.19786, Grok-1
github.com/xai-org/grok-1 (run.py), DeepSeek-V3 arXiv 2412.19437.
"""

import math
from dataclasses import replace

from .config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadConfig,
    LatentConfig,
    LayerException,
    ModelConfig,
    NormConfig,
    RopeConfig,
    YarnScaling,
)

Sizes = tuple[int, int, int, int]  # vocabulary, hidden, intermediate, layers
Heads = tuple[int, int, int]  # query heads, key-value heads, head size


def _gemma(
    sizes: Sizes, attention: AttentionConfig, everything: AttentionConfig, every: int
) -> ModelConfig:
    """Windows in all layers but each `every`-th, which has the attention `everything`."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=8192,
        norm=NormConfig(1e-6),
        attention=attention,
        feed_forward=FeedForwardConfig(intermediate_size, "geglu_tanh"),
        tie_word_embeddings=True,
        placement="sandwich",
        embedding=EmbeddingConfig(scale=hidden_size**0.5),
        exceptions=(LayerException(tuple(range(every - 1, num_layers, every)), everything),),
    )


def _scale(scalar: int, heads: Heads) -> float | None:
    """Scores are divided by the root of `scalar`, which mostly is the head size."""
    return None if scalar == heads[2] else scalar**-0.5


def gemma_2(sizes: Sizes, heads: Heads, *, scalar: int, window: int) -> ModelConfig:
    """Gemma 2; scalar: scores are divided by its root."""
    attention = AttentionConfig(
        *heads, RopeConfig(10000.0), scale=_scale(scalar, heads), softcap=50.0, window=window
    )
    config = _gemma(sizes, attention, replace(attention, window=None), 2)
    return replace(config, head=HeadConfig(softcap=30.0))


def gemma_3(sizes: Sizes, heads: Heads, *, scalar: int, window: int, context: int) -> ModelConfig:
    """Gemma 3's text decoder: q/k norms, and another RoPE where there is no window."""
    local = AttentionConfig(
        *heads,
        RopeConfig(10000.0),
        qk_norm=NormConfig(1e-6),
        scale=_scale(scalar, heads),
        window=window,
    )
    everything = replace(local, rope=RopeConfig(1000000.0), window=None)
    return replace(_gemma(sizes, local, everything, 6), max_position_embeddings=context)


def grok_1(sizes: Sizes, heads: Heads, context: int = 8192) -> ModelConfig:
    """Grok-1: norms on both sides, two of eight experts by softmax, scores capped at 30."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(1e-5),
        attention=AttentionConfig(*heads, RopeConfig(10000.0), softcap=30.0),
        feed_forward=FeedForwardConfig(
            intermediate_size, "geglu_tanh", experts=ExpertsConfig(num_experts=8, num_active=2)
        ),
        tie_word_embeddings=True,
        placement="sandwich",
        embedding=EmbeddingConfig(scale=hidden_size**0.5),
        head=HeadConfig(scale=3**-0.5),
    )


def deepseek_v3(
    sizes: Sizes,
    num_heads: int,
    latent: LatentConfig,
    experts: ExpertsConfig,
    *,
    plain_dim: int,
    dense: tuple[int, int],
) -> ModelConfig:
    """DeepSeek-V3; sizes: intermediate of one expert; dense: (layers without experts, their intermediate size)."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    head_dim, factor = plain_dim + latent.rope_dim, 40.0
    stretched = 0.1 * math.log(factor) + 1  # YaRN's mscale_all_dim of 1
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=163840,
        norm=NormConfig(1e-6),
        attention=AttentionConfig(
            num_heads,
            num_heads,
            head_dim,
            RopeConfig(10000.0, YarnScaling(factor, 4096)),
            scale=head_dim**-0.5 * stretched * stretched,
            latent=latent,
        ),
        feed_forward=FeedForwardConfig(intermediate_size, experts=experts),
        exceptions=(
            LayerException(tuple(range(dense[0])), feed_forward=FeedForwardConfig(dense[1])),
        ),
    )


_DEEPSEEK_EXPERTS = ExpertsConfig(
    num_experts=256,
    num_active=8,
    score="sigmoid",
    normalise=True,
    scaling=2.5,
    shared_size=2048,
    correction_bias=True,
    num_groups=8,
    num_active_groups=4,
)

GEMMA: dict[str, ModelConfig] = {
    "gemma-2-2b": gemma_2((256000, 2304, 9216, 26), (8, 4, 256), scalar=256, window=4096),
    "gemma-2-9b": gemma_2((256000, 3584, 14336, 42), (16, 8, 256), scalar=256, window=4096),
    "gemma-2-27b": gemma_2((256000, 4608, 36864, 46), (32, 16, 128), scalar=144, window=4096),
    "gemma-3-270m": gemma_3(
        (262144, 640, 2048, 18), (4, 1, 256), scalar=256, window=512, context=32768
    ),
    "gemma-3-1b": gemma_3(
        (262144, 1152, 6912, 26), (4, 1, 256), scalar=256, window=512, context=32768
    ),
    "grok-1": grok_1((131072, 6144, 32768, 64), (48, 8, 128)),
    "deepseek-v3": deepseek_v3(
        (129280, 7168, 2048, 61),
        128,
        LatentConfig(kv_lora_rank=512, rope_dim=64, value_dim=128, q_lora_rank=1536),
        _DEEPSEEK_EXPERTS,
        plain_dim=128,
        dense=(3, 18432),
    ),
}
