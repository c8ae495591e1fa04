"""What all layers of one forward share."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .masks import Masks
from .rope import CosSin, Rotation


@dataclass(frozen=True, slots=True)
class Context:
    """cos_sin: of each rotation. masks: of each self-attention, None where is_causal says it.

    encoder: what a cross-attention looks at [batch, source, hidden], with encoder_mask [batch, 1, sequence, source].
    """

    cos_sin: Mapping[Rotation, CosSin]
    masks: Masks
    encoder: torch.Tensor | None = None
    encoder_mask: torch.Tensor | None = None
