"""Published sizes by name, and a few tiny ones for tests and trials."""

from .config import (
    AttentionConfig,
    FeedForwardConfig,
    Llama3Scaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
)


def _llama(
    sizes: tuple[int, int, int, int],  # vocabulary, hidden, intermediate, layers
    heads: tuple[int, int, int],  # query heads, key-value heads, head size
    rope: RopeConfig,
    *,
    context: int,
    eps: float = 1e-5,
    tied: bool = False,
) -> ModelConfig:
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(eps),
        attention=AttentionConfig(*heads, rope),
        feed_forward=FeedForwardConfig(intermediate_size),
        tie_word_embeddings=tied,
    )


_LLAMA_3 = RopeConfig(500000.0)
_LLAMA_3_1 = RopeConfig(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
_LLAMA_3_2 = RopeConfig(500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))

# Sizes from the models' config.json; Llama 1: arXiv 2302.13971, Llama 2: 2307.09288, Llama 3: 2407.21783,
# SmolLM2: 2502.02737, TinyLlama: 2401.02385.
PRESETS: dict[str, ModelConfig] = {
    "llama-tiny": _llama(
        (256, 64, 192, 2), (4, 2, 16), RopeConfig(10000.0), context=512, tied=True
    ),
    "llama-tiny-untied": _llama((256, 64, 192, 2), (4, 4, 32), _LLAMA_3_1, context=512),
    "llama-small": _llama(
        (1024, 256, 768, 4), (8, 2, 32), RopeConfig(10000.0), context=2048, tied=True
    ),
    "llama-7b": _llama(
        (32000, 4096, 11008, 32), (32, 32, 128), RopeConfig(10000.0), context=2048, eps=1e-6
    ),
    "llama-2-7b": _llama(
        (32000, 4096, 11008, 32), (32, 32, 128), RopeConfig(10000.0), context=4096
    ),
    "llama-2-70b": _llama(
        (32000, 8192, 28672, 80), (64, 8, 128), RopeConfig(10000.0), context=4096
    ),
    "llama-3-8b": _llama((128256, 4096, 14336, 32), (32, 8, 128), _LLAMA_3, context=8192),
    "llama-3-70b": _llama((128256, 8192, 28672, 80), (64, 8, 128), _LLAMA_3, context=8192),
    "llama-3.1-8b": _llama((128256, 4096, 14336, 32), (32, 8, 128), _LLAMA_3_1, context=131072),
    "llama-3.2-1b": _llama(
        (128256, 2048, 8192, 16), (32, 8, 64), _LLAMA_3_2, context=131072, tied=True
    ),
    "llama-3.2-3b": _llama(
        (128256, 3072, 8192, 28), (24, 8, 128), _LLAMA_3_2, context=131072, tied=True
    ),
    "smollm2-135m": _llama(
        (49152, 576, 1536, 30), (9, 3, 64), RopeConfig(100000.0), context=8192, tied=True
    ),
    "smollm2-360m": _llama(
        (49152, 960, 2560, 32), (15, 5, 64), RopeConfig(100000.0), context=8192, tied=True
    ),
    "smollm2-1.7b": _llama(
        (49152, 2048, 8192, 24), (32, 32, 64), RopeConfig(130000.0), context=8192, tied=True
    ),
    "tinyllama-1.1b": _llama(
        (32000, 2048, 5632, 22), (32, 4, 64), RopeConfig(10000.0), context=2048
    ),
}
