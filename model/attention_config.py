"""Attention as data: heads, positions, biases, norms of queries and keys, what a query may see."""

from dataclasses import dataclass

from .contradiction import contradiction
from .norm_config import NormConfig
from .rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class RelativeBiasConfig:
    """A learned number per head and bucket of distances, added to the scores (T5, arXiv 1910.10683).

    Half of the buckets (a quarter each way where the attention looks both ways) hold one distance each, the rest grow
    with its logarithm up to max_distance.
    """

    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        """Check that there are exact buckets, and distances beyond them."""
        if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets:
            raise contradiction(
                f"{self.num_buckets} buckets for distances up to {self.max_distance}",
                "Give a multiple of 4 buckets and a larger distance",
            )


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values grow from one short vector.

    rope_dim elements of each query and key head carry the position, and all heads share the key's; the other
    head_dim - rope_dim do not. q_lora_rank None: queries come straight from the hidden state.
    """

    kv_lora_rank: int
    rope_dim: int
    value_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention: multi-head when num_kv_heads == num_heads, else grouped queries, multi-query at 1.

    rope: None for positions that come from elsewhere. bias, out_bias: of the projections to q, k, v and back.
    packed: q, k, v in one projection. qk_norm: over each head of queries and keys, before RoPE. scale: of the scores,
    None for head_dim ** -0.5. softcap: scores become softcap * tanh(scores / softcap). window: how many positions a
    query sees, its own included.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None
    bias: bool = False
    out_bias: bool = False
    packed: bool = False
    qk_norm: NormConfig | None = None
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None
    causal: bool = True
    relative_bias: RelativeBiasConfig | None = None
    latent: LatentConfig | None = None

    @property
    def score_scale(self) -> float:
        """What the scores are multiplied by."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that RoPE rotates."""
        if self.latent is not None:
            return self.latent.rope_dim
        partial = None if self.rope is None else self.rope.rotary_dim
        return self.head_dim if partial is None else partial

    @property
    def value_dim(self) -> int:
        """Elements of a value head."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    def sizes(self) -> dict[str, float]:
        """Everything that must be a positive size, by name."""
        sizes: dict[str, float] = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "num_heads * head_dim": self.num_heads * self.head_dim,
            "attention scale": self.score_scale if self.head_dim > 0 else 1,
            "attention softcap": 1.0 if self.softcap is None else self.softcap,
            "attention window": 1 if self.window is None else self.window,
        }
        if self.latent is not None:
            latent = self.latent
            sizes |= {"kv_lora_rank": latent.kv_lora_rank, "v_head_dim": latent.value_dim}
            sizes |= {"qk_rope_head_dim": latent.rope_dim, "q_lora_rank": latent.q_lora_rank or 1}
        return sizes

    def check(self) -> None:
        """Raise UsageError naming the choices that contradict each other; sizes are positive already."""
        if self.num_heads % self.num_kv_heads:
            raise contradiction(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}",
                "Each key-value head serves the same number of query heads",
            )
        if self.rope is not None:
            self.rope.check(self.rotary_dim)
        if self.rotary_dim > self.head_dim or self.rotary_dim < 1:
            raise contradiction(
                f"{self.rotary_dim} rotated elements in a head of {self.head_dim}",
                "RoPE rotates the head or a part of it",
            )
        if self.latent is not None and (self.rope is None or self.num_kv_heads != self.num_heads):
            raise contradiction(
                f"latent attention with {self.num_kv_heads} key-value heads for {self.num_heads} and "
                f"{'no RoPE' if self.rope is None else 'RoPE'}",
                "Latent attention has as many key heads as query heads, and RoPE on a part of them",
            )
