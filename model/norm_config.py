"""A norm as data."""

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "rms_eps_outside", "layer", "batch"]


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A norm over the hidden axis; eps is added inside the root, with rms_eps_outside to the root.

    bias: whether a "layer" norm shifts as well as scales.
    """

    eps: float
    kind: NormKind = "rms"
    bias: bool = True
