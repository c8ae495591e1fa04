"""The original Transformer, BERT, GPT-2 and GPT-3, T5 v1.1 and PaLM.

Sizes from the papers and config.json files: Transformer arXiv 1706.03762 table 3; BERT 1810.04805; MiniLM 2002.10957;
GPT-3 2005.14165 table 2.1 (whose alternating banded attention is dense here); T5 1910.10683 and its v1.1 notes; PaLM
2204.02311 table 1.
"""

from dataclasses import replace

from .config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    ModelConfig,
    NormConfig,
    RelativeBiasConfig,
    RopeConfig,
)

Sizes = tuple[int, int, int, int]  # vocabulary, hidden, intermediate, layers


def _heads(num_heads: int, head_dim: int, *, causal: bool) -> AttentionConfig:
    """Multi-head attention with biases and without positions of its own."""
    return AttentionConfig(
        num_heads, num_heads, head_dim, rope=None, bias=True, out_bias=True, causal=causal
    )


def transformer_stack(
    sizes: Sizes, num_heads: int, *, causal: bool, context: int, head: HeadConfig
) -> ModelConfig:
    """One stack of the original Transformer: an encoder, or (causal) the decoder of a decoder-only model."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(1e-5, "layer"),
        attention=_heads(num_heads, hidden_size // num_heads, causal=causal),
        feed_forward=FeedForwardConfig(intermediate_size, "relu", bias=True),
        tie_word_embeddings=True,
        placement="post",
        embedding=EmbeddingConfig(scale=hidden_size**0.5, positions="sinusoidal"),
        head=head,
        final_norm=False,
        padding_mask=not causal,
    )


def transformer(sizes: Sizes, num_heads: int, context: int) -> ModelConfig:
    """The original Transformer: encoder and decoder."""
    encoder = transformer_stack(
        sizes, num_heads, causal=False, context=context, head=HeadConfig("hidden")
    )
    decoder = transformer_stack(
        sizes, num_heads, causal=True, context=context, head=HeadConfig("logits")
    )
    return replace(decoder, encoder=encoder, cross_attention=encoder.attention)


def bert(sizes: Sizes, num_heads: int, context: int = 512) -> ModelConfig:
    """BERT with its pooler."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(1e-12, "layer"),
        attention=_heads(num_heads, hidden_size // num_heads, causal=False),
        feed_forward=FeedForwardConfig(intermediate_size, "gelu", bias=True),
        tie_word_embeddings=True,
        placement="post",
        embedding=EmbeddingConfig(positions="learned", num_types=2, norm=True),
        head=HeadConfig("pooled"),
        final_norm=False,
        padding_mask=True,
    )


def gpt(
    hidden_size: int, num_layers: int, num_heads: int, context: int = 1024, vocab_size: int = 50257
) -> ModelConfig:
    """GPT-2 and GPT-3."""
    attention = _heads(num_heads, hidden_size // num_heads, causal=True)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=context,
        norm=NormConfig(1e-5, "layer"),
        attention=replace(attention, packed=True),
        feed_forward=FeedForwardConfig(4 * hidden_size, "gelu_tanh", bias=True),
        tie_word_embeddings=True,
        embedding=EmbeddingConfig(positions="learned"),
    )


def t5_stack(sizes: Sizes, heads: tuple[int, int], *, causal: bool) -> ModelConfig:
    """One stack of T5 v1.1; heads: how many, of which size. The encoder takes a padding mask."""
    vocab_size, hidden_size, intermediate_size, num_layers = sizes
    num_heads, head_dim = heads
    attention = AttentionConfig(
        num_heads,
        num_heads,
        head_dim,
        rope=None,
        scale=1.0,
        causal=causal,
        relative_bias=RelativeBiasConfig(),
    )
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=512,
        norm=NormConfig(1e-6),
        attention=attention,
        feed_forward=FeedForwardConfig(intermediate_size, "geglu_tanh"),
        head=HeadConfig("logits" if causal else "hidden"),
        padding_mask=not causal,
    )


def t5(sizes: Sizes, heads: tuple[int, int]) -> ModelConfig:
    """T5 v1.1: encoder and decoder."""
    encoder = t5_stack(sizes, heads, causal=False)
    cross = replace(encoder.attention, relative_bias=None)
    return replace(t5_stack(sizes, heads, causal=True), encoder=encoder, cross_attention=cross)


def palm(
    hidden_size: int, num_layers: int, heads: tuple[int, int], vocab_size: int = 256000
) -> ModelConfig:
    """PaLM: parallel sub-layers over one LayerNorm without bias, multi-query attention, SwiGLU of 4 d."""
    num_heads, head_dim = heads
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=2048,
        norm=NormConfig(1e-6, "layer", bias=False),
        attention=AttentionConfig(num_heads, 1, head_dim, RopeConfig(10000.0)),
        feed_forward=FeedForwardConfig(4 * hidden_size),
        tie_word_embeddings=True,
        placement="parallel",
        head=HeadConfig(scale=hidden_size**-0.5),
    )


EARLY: dict[str, ModelConfig] = {
    "transformer-base": transformer((37000, 512, 2048, 6), 8, 512),
    "transformer-big": transformer((37000, 1024, 4096, 6), 16, 512),
    "bert-base": bert((30522, 768, 3072, 12), 12),
    "bert-large": bert((30522, 1024, 4096, 24), 16),
    "minilm-l6": bert((30522, 384, 1536, 6), 12),
    "gpt2": gpt(768, 12, 12),
    "gpt2-medium": gpt(1024, 24, 16),
    "gpt2-large": gpt(1280, 36, 20),
    "gpt2-xl": gpt(1600, 48, 25),
    "gpt-3-175b": gpt(12288, 96, 96, context=2048),
    "t5-v1.1-small": t5((32128, 512, 1024, 8), (6, 64)),
    "t5-v1.1-base": t5((32128, 768, 2048, 12), (12, 64)),
    "t5-v1.1-large": t5((32128, 1024, 2816, 24), (16, 64)),
    "t5-v1.1-xl": t5((32128, 2048, 5120, 24), (32, 64)),
    "t5-v1.1-xxl": t5((32128, 4096, 10240, 24), (64, 64)),
    "t5-v1.1-base-encoder": t5_stack((32128, 768, 2048, 12), (12, 64), causal=False),
    "palm-8b": palm(4096, 32, (16, 256)),
    "palm-62b": palm(8192, 64, (32, 256)),
    "palm-540b": palm(18432, 118, (48, 256)),
}
