"""Limits: what a recipe asks of the numbers. Data only, so that a recipe is read without torch."""

import math
from dataclasses import dataclass, fields

from ..core.errors import UsageError

RANGES = {"min_cosine": (-1.0, 1.0), "min_token_agreement": (0.0, 1.0)}  # others: 0 and up


@dataclass(frozen=True, slots=True)
class Limits:
    """What a variant must keep to; None sets no limit. There are no defaults: a recipe names its own.

    max_error_over_floor: rms error over PyTorch's in the same dtype, pooled over all cases, per output.
    max_layer_error_over_floor: the same for the output of every decoder layer.
    min_cosine: the smallest cosine with the truth, over outputs and cases.
    max_perplexity_ratio: perplexity over the truth's. max_kl_divergence: mean over positions, in nats.
    min_token_agreement: share of positions with the truth's greedy token.
    max_overflows: how many values of the graph may leave the finite range of their dtype.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 a typo in a recipe is refused

    max_error_over_floor: float | None = None
    max_layer_error_over_floor: float | None = None
    min_cosine: float | None = None
    max_perplexity_ratio: float | None = None
    max_kl_divergence: float | None = None
    min_token_agreement: float | None = None
    max_overflows: int | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            limit = getattr(self, item.name)
            low, high = RANGES.get(item.name, (0.0, math.inf))
            if limit is not None and not (math.isfinite(limit) and low <= limit <= high):
                raise UsageError(
                    f"limit {item.name} = {limit}",
                    found=f"not a finite number from {low:g} to {high:g}",
                    fix="Leave it out to set no limit",
                )


def check_applicable(limits: Limits, *, language: bool, text: bool) -> None:
    """Raise UsageError for a limit that can never be applied. language: logits come out; text: a tokenizer is there."""
    reasons = {}
    if not text:
        reasons["max_perplexity_ratio"] = "there is no text: it needs a decoder with a tokenizer"
    if not language:
        reasons["max_kl_divergence"] = reasons["min_token_agreement"] = "a block has no next token"
    for name, reason in reasons.items():
        if getattr(limits, name) is not None:
            raise UsageError(
                f"limit {name}", found=reason, fix="Leave this limit out of the recipe"
            )
