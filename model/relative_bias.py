"""Relative position bias (T5: Raffel et al. 2020, arXiv 1910.10683).

    bias[n, i, j] = weight[bucket(j - i), n]      added to the scores of head n, query i, key j

A distance below the number of exact buckets is its own bucket; the rest grow with the logarithm of the distance.

Shapes: S sequence, N heads, U buckets, L = 2 * max_distance + 1 distances.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .config import AttentionConfig, RelativeBiasConfig
from .rope import constant


class RelativeBias(nn.Module):
    """One learned number per bucket and head, shared by all layers of a stack."""

    def __init__(self, attention: AttentionConfig) -> None:
        super().__init__()
        assert attention.relative_bias is not None, "the caller asks"
        self.config = attention.relative_bias
        self.buckets = distance_buckets(self.config, both_ways=not attention.causal)
        self.weight = nn.Parameter(torch.empty(self.config.num_buckets, attention.num_heads))

    def forward(self, sequence: int) -> torch.Tensor:
        """bias [1, heads, sequence, sequence] in the weight's type.

        The weight is spread over all distances first, so that the S * S look-ups need no arithmetic but a clip.
        """
        furthest, device = self.config.max_distance, self.weight.device
        bucket_L = constant(self.buckets, torch.int64, device)
        by_distance_LN = F.embedding(bucket_L, self.weight)
        position_S = torch.arange(sequence, device=device)
        distance_SS = (position_S - position_S.unsqueeze(-1)).clamp(-furthest, furthest)
        bias_SSN = F.embedding(distance_SS + furthest, by_distance_LN)
        return bias_SSN.permute(2, 0, 1).unsqueeze(0)


def distance_buckets(config: RelativeBiasConfig, *, both_ways: bool) -> tuple[int, ...]:
    """The bucket of each key position minus query position, from -max_distance to max_distance.

    both_ways: half of the buckets are for keys ahead; else keys ahead share bucket 0 (they are hidden anyway).
    """
    furthest = config.max_distance
    if not both_ways:
        behind = [_bucket(config.num_buckets, d, furthest) for d in range(furthest, 0, -1)]
        return (*behind, *[0] * (furthest + 1))
    half = config.num_buckets // 2
    buckets = [_bucket(half, d, furthest) for d in range(furthest + 1)]
    return (*buckets[:0:-1], buckets[0], *(half + bucket for bucket in buckets[1:]))


def _bucket(num_buckets: int, distance: int, furthest: int) -> int:
    exact = num_buckets // 2
    if distance < exact:
        return distance
    steps = num_buckets - exact
    grown = math.log(distance / exact) / math.log(furthest / exact) * steps
    return min(exact + int(grown), num_buckets - 1)
