"""A preset with seeded random weights: the same numbers for a name and seed, in any order of reading."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core.errors import UsageError
from ..config import ModelConfig
from ..presets import PRESETS
from ..skeleton import parameter_shapes
from .protocol import as_finite, require_name

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class RandomCheckpoint:
    """Weights drawn so that activations keep their size: see read."""

    source: str
    config: ModelConfig
    seed: int

    def names(self) -> list[str]:
        """Our parameter names, in the module's order."""
        return list(parameter_shapes(self.config))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of parameter `name`; UsageError for an unknown name."""
        shapes = parameter_shapes(self.config)
        require_name(self.source, name, list(shapes))
        return shapes[name]

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Linear weights from N(0, 1/in), the embedding from N(0, 1), norm weights from N(1, 0.1^2)."""
        shape = self.shape(name)
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        normal = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            normal = 1 + 0.1 * normal
        elif name != "embed_tokens.weight" or self.config.tie_word_embeddings:
            normal = normal * shape[-1] ** -0.5
        return as_finite(normal, dtype, name, self.source)

    def tokenizer(self) -> "tokenizers.Tokenizer | None":
        """None: random weights speak no language."""
        return None


def preset_checkpoint(name: str, seed: int = 0) -> RandomCheckpoint:
    """The preset `name` with random weights from `seed`; UsageError lists the presets."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"preset {name!r}", found="no such preset", fix=f"Known: {known}")
    return RandomCheckpoint(f"preset:{name}", PRESETS[name], seed)
