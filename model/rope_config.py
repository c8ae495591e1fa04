"""Rotary positions as data: the base, how much of a head rotates, and how the frequencies are scaled."""

import math
from dataclasses import dataclass

from .contradiction import contradiction


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
            raise contradiction(
                f"llama3 RoPE scaling with low_freq_factor {low}, high_freq_factor {high} and "
                f"original_max_position_embeddings {self.original_max_position_embeddings}",
                "Keep 0 < low < high and a context of 1 or more",
            )


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Keep frequencies above beta_fast turns, divide those below beta_slow, ramp between (arXiv 2309.00071).

    The turns count over `original_max_position_embeddings`; the ramp runs over pair numbers, rounded outwards to whole
    ones with `truncate`. Cosines and sines are multiplied by attention_factor.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        """Check that the factors divide and the limits are in order."""
        _check_factors(self.factor, self.attention_factor)
        fast, slow = self.beta_fast, self.beta_slow
        if not 0 < slow <= fast < math.inf or not self.original_max_position_embeddings > 0:
            raise contradiction(
                f"yarn RoPE scaling with beta_slow {slow}, beta_fast {fast} and "
                f"original_max_position_embeddings {self.original_max_position_embeddings}",
                "Keep 0 < slow <= fast and a context of 1 or more",
            )


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Divide frequency i by short_factor[i], by long_factor[i] once the sequence passes the original context.

    Cosines and sines are multiplied by attention_factor (LongRoPE, arXiv 2402.13753; Phi-3).
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        """Check that the factors divide and are as many in both sets."""
        _check_factors(*self.short_factor, *self.long_factor, self.attention_factor)
        short, long = len(self.short_factor), len(self.long_factor)
        if short != long or not self.original_max_position_embeddings > 0:
            raise contradiction(
                f"longrope scaling with {short} short and {long} long factors over "
                f"original_max_position_embeddings {self.original_max_position_embeddings}",
                "Give as many of both, and a context of 1 or more",
            )


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Divide RoPE frequency i by factors[i] (GGUF's rope_freqs tensor)."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that the factors divide."""
        _check_factors(*self.factors)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | FrequencyFactors


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions, rotating two halves against each other: of the head, or of its first rotary_dim elements."""

    rope_theta: float
    scaling: RopeScaling | None = None
    rotary_dim: int | None = None

    def check(self, dim: int) -> None:
        """Raise UsageError unless `dim` rotated elements fit this configuration."""
        if dim % 2:
            raise contradiction(f"head_dim {dim} is odd", "RoPE rotates pairs: head_dim is even")
        match self.scaling:
            case FrequencyFactors(factors) | LongRopeScaling(factors):
                if len(factors) != dim // 2:
                    raise contradiction(
                        f"{len(factors)} RoPE frequency factors for head_dim {dim}",
                        "RoPE has head_dim / 2 frequencies",
                    )


def _check_factors(*factors: float) -> None:
    for factor in factors:
        if not 0 < factor < math.inf:
            raise contradiction(
                f"a RoPE scaling factor of {factor}", "Factors are greater than zero"
            )
