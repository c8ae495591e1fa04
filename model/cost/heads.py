"""What each attention of a model costs, read from the configuration: head sizes, mask, cache.

visible pairs of a prefill of S tokens     sum over i of min(i + 1, window)  under a causal mask,  S * S  without
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..attention_config import AttentionConfig
from ..config import ModelConfig
from .parts import Place


@dataclass(frozen=True, slots=True)
class HeadShape:
    """One attention. Sizes in elements.

    score_dim, value_dim: a query or key, and a value. expanded: keys and values of one token for all their heads.
    cached: what the KV cache keeps of one token; cached_dims: widths of a cached key and value as a query head meets
    them. rotated: what RoPE turns of one token. window: how many positions a query sees, None for all.
    """

    place: Place
    num_heads: int
    num_kv_heads: int
    score_dim: int
    value_dim: int
    expanded: int
    cached: int
    cached_dims: tuple[int, int]
    rotated: int
    causal: bool
    window: int | None

    def flops_per_pair(self, *, cached: bool) -> int:
        """Q K^T and A V for one query and one key position, a multiply-add counted as 2."""
        dims = self.cached_dims if cached else (self.score_dim, self.value_dim)
        return 2 * self.num_heads * sum(dims)

    def kept(self, sequence: int) -> int:
        """Positions that a query at the end of `sequence` tokens sees."""
        return sequence if self.window is None else min(sequence, self.window)

    def visible_pairs(self, sequence: int) -> int:
        """Pairs of a query and a key position that the mask leaves in a prefill of `sequence` tokens."""
        if not self.causal:
            return sequence * sequence
        kept = self.kept(sequence)
        return kept * (kept + 1) // 2 + (sequence - kept) * kept


def head_shapes(config: ModelConfig) -> Iterator[HeadShape]:
    """Every attention of the model: of its blocks, across to the encoder, and of the encoder."""
    for layer in range(config.num_layers):
        yield _shape(config.attention_of(layer), Place(layer))
        if config.cross_attention is not None:
            yield _shape(config.cross_attention, Place(layer, group="cross"))
    if config.encoder is not None:
        for layer in range(config.encoder.num_layers):
            yield _shape(config.encoder.attention_of(layer), Place(layer, encoder=True))


def _shape(attention: AttentionConfig, place: Place) -> HeadShape:
    """Latent attention caches one short vector and one rotated key for all heads.

    Decoding leaves the vector as it is and folds the matrices that would expand it into queries and outputs (arXiv
    2405.04434, 2.1.2): a key is then kv_lora_rank + rope_dim wide, a value kv_lora_rank.
    """
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    score_dim, value_dim = attention.head_dim, attention.value_dim
    turned = 0 if attention.rope is None or place.group == "cross" else attention.rotary_dim
    expanded = cached = kv_heads * (score_dim + value_dim)
    cached_dims, rotated = (score_dim, value_dim), (heads + kv_heads) * turned
    if attention.latent is not None:
        rank, rope_dim = attention.latent.kv_lora_rank, attention.latent.rope_dim
        cached, cached_dims, rotated = (
            rank + rope_dim,
            (rank + rope_dim, rank),
            (heads + 1) * turned,
        )
    return HeadShape(
        place=place,
        num_heads=heads,
        num_kv_heads=kv_heads,
        score_dim=score_dim,
        value_dim=value_dim,
        expanded=expanded,
        cached=0 if place.encoder or (place.group == "own" and not attention.causal) else cached,
        cached_dims=cached_dims,
        rotated=rotated,
        causal=attention.causal and place.group == "own",
        window=attention.window if place.group == "own" else None,
    )
