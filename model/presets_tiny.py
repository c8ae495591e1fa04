"""Every family at a size that a test can build: two blocks, 64 hidden elements, 256 tokens.

The last ones are no published model: each is the tiny Llama with one part changed.
"""

from dataclasses import replace

from .config import (
    AttentionConfig,
    DeepNormConfig,
    ExpertsConfig,
    FeedForwardConfig,
    FeedForwardKind,
    HeadConfig,
    LatentConfig,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
)
from .presets_early import bert, gpt, palm, t5, t5_stack, transformer, transformer_stack
from .presets_gemma import deepseek_v3, gemma_2, gemma_3, grok_1
from .presets_llama import llama, mistral, phi3, qwen2, qwen3, rotary

_SIZES, _HEADS, _WINDOW = (256, 64, 192, 2), (4, 2, 16), 16
_LLAMA = llama(_SIZES, rotary(_HEADS), context=512, tied=True)


def _kind(kind: FeedForwardKind) -> ModelConfig:
    return replace(_LLAMA, feed_forward=FeedForwardConfig(192, kind))


_EXPERTS = ExpertsConfig(
    num_experts=8,
    num_active=2,
    score="sigmoid",
    normalise=True,
    scaling=2.5,
    shared_size=32,
    correction_bias=True,
    num_groups=4,
    num_active_groups=2,
)
_LONGROPE = RopeConfig(
    10000.0,
    LongRopeScaling(
        short_factor=tuple(1.0 + i / 16 for i in range(8)),
        long_factor=tuple(1.0 + i for i in range(8)),
        original_max_position_embeddings=64,
        attention_factor=1.2,
    ),
)

TINY: dict[str, ModelConfig] = {
    "llama-tiny": _LLAMA,
    "llama-tiny-untied": llama(
        _SIZES,
        AttentionConfig(4, 4, 32, RopeConfig(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))),
        context=512,
    ),
    "llama-small": llama((1024, 256, 768, 4), rotary((8, 2, 32)), context=2048, tied=True),
    "transformer-tiny": transformer((256, 64, 256, 2), 4, 512),
    "transformer-tiny-encoder": transformer_stack(
        (256, 64, 256, 2), 4, causal=False, context=512, head=HeadConfig("hidden")
    ),
    "transformer-tiny-decoder": transformer_stack(
        (256, 64, 256, 2), 4, causal=True, context=512, head=HeadConfig("logits")
    ),
    "bert-tiny": bert((256, 64, 256, 2), 4),
    "gpt2-tiny": gpt(64, 2, 4, context=512, vocab_size=256),
    "mistral-tiny": llama(_SIZES, mistral(_HEADS, _WINDOW), context=512),
    "qwen2.5-tiny": llama(_SIZES, qwen2(_HEADS), context=512, eps=1e-6, tied=True),
    "qwen3-tiny": llama(_SIZES, qwen3(_HEADS), context=512, eps=1e-6, tied=True),
    "palm-tiny": palm(64, 2, (4, 32), vocab_size=256),
    "t5-tiny": t5((256, 64, 192, 2), (4, 16)),
    "t5-tiny-encoder": t5_stack((256, 64, 192, 2), (4, 16), causal=False),
    "phi-3-tiny": llama(_SIZES, phi3((4, 4, 16), _WINDOW), context=512, packed=True),
    "phi-3-tiny-longrope": llama(
        _SIZES, replace(phi3((4, 4, 16), _WINDOW), rope=_LONGROPE), context=512, packed=True
    ),
    "partial-rope-tiny": llama(
        _SIZES, AttentionConfig(4, 2, 32, RopeConfig(10000.0, rotary_dim=24)), context=512
    ),
    "gemma-2-tiny": gemma_2(_SIZES, _HEADS, scalar=16, window=_WINDOW),
    "gemma-3-tiny": gemma_3((256, 64, 192, 6), (4, 1, 16), scalar=16, window=_WINDOW, context=512),
    "grok-1-tiny": grok_1((256, 64, 64, 2), _HEADS, context=512),
    "deepseek-v3-tiny": deepseek_v3(
        (256, 64, 32, 2),
        4,
        LatentConfig(kv_lora_rank=16, rope_dim=8, value_dim=16, q_lora_rank=24),
        _EXPERTS,
        plain_dim=16,
        dense=(1, 192),
    ),
    "sandwich-tiny": replace(_LLAMA, placement="sandwich"),
    "deepnorm-tiny": replace(
        _LLAMA,
        placement="deepnorm",
        norm=NormConfig(1e-5, "layer"),
        final_norm=False,
        deepnorm=DeepNormConfig.for_layers(2),
    ),
    "parallel-tiny": replace(_LLAMA, placement="parallel"),
    "glu-tiny": _kind("glu"),
    "reglu-tiny": _kind("reglu"),
    "geglu-tiny": _kind("geglu"),
    "rms-eps-outside-tiny": replace(_LLAMA, norm=NormConfig(1e-5, "rms_eps_outside")),
    "batchnorm-tiny": replace(_LLAMA, norm=NormConfig(1e-5, "batch")),
}
