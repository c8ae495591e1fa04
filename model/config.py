"""What a model is, as data: one frozen dataclass per part, spelled with Hugging Face's names.

A family is a choice of parts (norm, attention with its positions, feed-forward, placement), never a class
of its own. Each choice is a `kind` that one dictionary in the part's file maps to its module, so that
a further norm or activation is a new row there and nothing else.
"""

import math
import sys
from dataclasses import dataclass
from typing import Literal

from ..core.errors import UsageError

_MOST_LAYERS, _LARGEST = 1024, 2**24  # beyond any model: a damaged file must not size the work


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A norm over the hidden axis; eps is added inside the root."""

    eps: float
    kind: Literal["rms"] = "rms"


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Divide every RoPE frequency by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        """Check that the factor divides."""
        _check_factors(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Divide the low RoPE frequencies by `factor`, keep the high ones, blend between (Llama 3.1).

    The limits are turns that a frequency makes over `original_max_position_embeddings`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        """Check that the factor divides and the limits are in order."""
        _check_factors(self.factor)
        low, high = self.low_freq_factor, self.high_freq_factor
        if not 0 < low < high < math.inf or not self.original_max_position_embeddings > 0:
            raise _contradiction(
                f"llama3 RoPE scaling with low_freq_factor {low}, high_freq_factor {high} and "
                f"original_max_position_embeddings {self.original_max_position_embeddings}",
                "Keep 0 < low < high and a context of 1 or more",
            )


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Divide RoPE frequency i by factors[i] (GGUF's rope_freqs tensor)."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that the factors divide."""
        _check_factors(*self.factors)


RopeScaling = LinearScaling | Llama3Scaling | FrequencyFactors


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions, rotating the two halves of a head against each other."""

    rope_theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Causal attention: multi-head when num_kv_heads == num_heads, else grouped queries."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class FeedForwardConfig:
    """The feed-forward sub-layer."""

    intermediate_size: int
    kind: Literal["swiglu"] = "swiglu"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of `num_layers` equal blocks between an embedding and a head.

    placement says where the norms of a block stand. Raises UsageError naming the sizes that contradict
    each other.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int
    norm: NormConfig
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    tie_word_embeddings: bool = False
    placement: Literal["pre"] = "pre"

    def __post_init__(self) -> None:
        """Check the sizes against each other."""
        attention, rope = self.attention, self.attention.rope
        sizes = {
            "num_layers": (self.num_layers, _MOST_LAYERS),
            "vocab_size": (self.vocab_size, _LARGEST),
            "hidden_size": (self.hidden_size, _LARGEST),
            "max_position_embeddings": (self.max_position_embeddings, _LARGEST),
            "intermediate_size": (self.feed_forward.intermediate_size, _LARGEST),
            "num_heads": (attention.num_heads, _LARGEST),
            "num_kv_heads": (attention.num_kv_heads, _LARGEST),
            "head_dim": (attention.head_dim, _LARGEST),
            "num_heads * head_dim": (attention.num_heads * attention.head_dim, _LARGEST),
            "rope_theta": (rope.rope_theta, sys.float_info.max),
            "norm eps": (self.norm.eps, sys.float_info.max),
        }
        for name, (size, largest) in sizes.items():
            if not 0 < size <= largest:
                raise _contradiction(
                    f"{name} is {size}", f"It must be greater than 0 and at most {largest:g}"
                )
        if attention.num_heads % attention.num_kv_heads:
            raise _contradiction(
                f"num_heads {attention.num_heads} is no multiple of num_kv_heads {attention.num_kv_heads}",
                "Each key-value head serves the same number of query heads",
            )
        if attention.head_dim % 2:
            raise _contradiction(
                f"head_dim {attention.head_dim} is odd", "RoPE rotates pairs: head_dim is even"
            )
        if isinstance(rope.scaling, FrequencyFactors):
            count = len(rope.scaling.factors)
            if count != attention.head_dim // 2:
                raise _contradiction(
                    f"{count} RoPE frequency factors for head_dim {attention.head_dim}",
                    "RoPE has head_dim / 2 frequencies",
                )


def _check_factors(*factors: float) -> None:
    for factor in factors:
        if not 0 < factor < math.inf:
            raise _contradiction(
                f"a RoPE scaling factor of {factor}", "Factors are greater than zero"
            )


def _contradiction(found: str, fix: str) -> UsageError:
    return UsageError("model configuration", found=found, fix=fix)
