"""The Llama family: pre-norm, RMSNorm, SwiGLU, RoPE, and what each member changes.

Sizes from the models' config.json; Llama 1: arXiv 2302.13971, Llama 2: 2307.09288, Llama 3: 2407.21783, SmolLM2:
2502.02737, TinyLlama: 2401.02385, Mistral: 2310.06825, Yi: 2403.04652, Qwen2.5: 2412.15115, Qwen3: 2505.09388, Phi-3:
2404.14219.
"""

from .config import (
    AttentionConfig,
    FeedForwardConfig,
    Llama3Scaling,
    ModelConfig,
    NormConfig,
    RopeConfig,
)


def llama(
    sizes: tuple[int, int, int, int],  # vocabulary, hidden, intermediate, layers
    attention: AttentionConfig,
    *,
    context: int,
    eps: float = 1e-5,
    tied: bool = False,
    packed: bool = False,
) -> ModelConfig:
    """A member of the family; packed: gate and up in one projection."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(eps),
        attention=attention,
        feed_forward=FeedForwardConfig(intermediate_size, packed=packed),
        tie_word_embeddings=tied,
    )


def rotary(heads: tuple[int, int, int], theta: float = 10000.0) -> AttentionConfig:
    """Attention with plain RoPE; heads: query heads, key-value heads, head size."""
    return AttentionConfig(*heads, RopeConfig(theta))


def llama_3(heads: tuple[int, int, int], factor: float) -> AttentionConfig:
    """Attention with Llama 3.1's scaled RoPE."""
    return AttentionConfig(*heads, RopeConfig(500000.0, Llama3Scaling(factor, 1.0, 4.0, 8192)))


def mistral(heads: tuple[int, int, int], window: int) -> AttentionConfig:
    """Attention under a sliding window."""
    return AttentionConfig(*heads, RopeConfig(10000.0), window=window)


def qwen2(heads: tuple[int, int, int]) -> AttentionConfig:
    """Attention with biases of q, k and v."""
    return AttentionConfig(*heads, RopeConfig(1000000.0), bias=True)


def qwen3(heads: tuple[int, int, int]) -> AttentionConfig:
    """Attention with an RMSNorm over each head of q and k."""
    return AttentionConfig(*heads, RopeConfig(1000000.0), qk_norm=NormConfig(1e-6))


def phi3(heads: tuple[int, int, int], window: int) -> AttentionConfig:
    """Attention with q, k and v in one projection, under a sliding window."""
    return AttentionConfig(*heads, RopeConfig(10000.0), packed=True, window=window)


LLAMA: dict[str, ModelConfig] = {
    "llama-7b": llama((32000, 4096, 11008, 32), rotary((32, 32, 128)), context=2048, eps=1e-6),
    "llama-2-7b": llama((32000, 4096, 11008, 32), rotary((32, 32, 128)), context=4096),
    "llama-2-70b": llama((32000, 8192, 28672, 80), rotary((64, 8, 128)), context=4096),
    "llama-3-8b": llama((128256, 4096, 14336, 32), rotary((32, 8, 128), 500000.0), context=8192),
    "llama-3-70b": llama((128256, 8192, 28672, 80), rotary((64, 8, 128), 500000.0), context=8192),
    "llama-3.1-8b": llama((128256, 4096, 14336, 32), llama_3((32, 8, 128), 8.0), context=131072),
    "llama-3.2-1b": llama(
        (128256, 2048, 8192, 16), llama_3((32, 8, 64), 32.0), context=131072, tied=True
    ),
    "llama-3.2-3b": llama(
        (128256, 3072, 8192, 28), llama_3((24, 8, 128), 32.0), context=131072, tied=True
    ),
    "smollm2-135m": llama(
        (49152, 576, 1536, 30), rotary((9, 3, 64), 100000.0), context=8192, tied=True
    ),
    "smollm2-360m": llama(
        (49152, 960, 2560, 32), rotary((15, 5, 64), 100000.0), context=8192, tied=True
    ),
    "smollm2-1.7b": llama(
        (49152, 2048, 8192, 24), rotary((32, 32, 64), 130000.0), context=8192, tied=True
    ),
    "tinyllama-1.1b": llama((32000, 2048, 5632, 22), rotary((32, 4, 64)), context=2048),
    "mistral-7b": llama((32000, 4096, 14336, 32), mistral((32, 8, 128), 4096), context=32768),
    "yi-6b": llama((64000, 4096, 11008, 32), rotary((32, 4, 128), 5000000.0), context=4096),
    "yi-34b": llama((64000, 7168, 20480, 60), rotary((56, 8, 128), 5000000.0), context=4096),
    "qwen2.5-0.5b": llama(
        (151936, 896, 4864, 24), qwen2((14, 2, 64)), context=32768, eps=1e-6, tied=True
    ),
    "qwen2.5-7b": llama((152064, 3584, 18944, 28), qwen2((28, 4, 128)), context=32768, eps=1e-6),
    "qwen3-0.6b": llama(
        (151936, 1024, 3072, 28), qwen3((16, 8, 128)), context=40960, eps=1e-6, tied=True
    ),
    "qwen3-8b": llama((151936, 4096, 12288, 36), qwen3((32, 8, 128)), context=40960, eps=1e-6),
    "phi-3-mini-4k": llama(
        (32064, 3072, 8192, 32), phi3((32, 32, 96), 2047), context=4096, packed=True
    ),
}
