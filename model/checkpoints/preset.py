"""A preset with seeded random weights: the same numbers for a name and seed, in any order of reading."""

import hashlib
import re
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

_AROUND_ZERO = (".bias", "_bias", ".running_mean")
_TABLES = ("embeddings.positions", "embeddings.types")
_SHRUNK = re.compile(r"\.(v_proj|o_proj|mlp\.\w+)\.weight$")


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
        """Linear weights from N(0, 1/in), embeddings from N(0, 1), norm weights from N(1, 0.1^2), biases N(0, 0.1^2).

        A tied embedding is a linear weight. With DeepNorm, weights of values, output and feed-forward shrink by beta.
        """
        shape = self.shape(name)
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        normal = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            normal = 0.1 * normal if name.endswith(_AROUND_ZERO) else 1 + 0.1 * normal
        elif not self._is_table(name):
            normal = normal * shape[-1] ** -0.5
        if self.config.deepnorm is not None and _SHRUNK.search(name):
            normal = normal * self.config.deepnorm.beta
        return as_finite(normal, dtype, name, self.source)

    def _is_table(self, name: str) -> bool:
        """Whether rows are looked up rather than multiplied."""
        if name == "embed_tokens.weight":
            return not self.config.tie_word_embeddings
        return name.startswith(_TABLES) or name.endswith("relative_bias.weight")

    def tokenizer(self) -> "tokenizers.Tokenizer | None":
        """None: random weights speak no language."""
        return None


def preset_checkpoint(name: str, seed: int = 0) -> RandomCheckpoint:
    """The preset `name` with random weights from `seed`; UsageError lists the presets."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"preset {name!r}", found="no such preset", fix=f"Known: {known}")
    return RandomCheckpoint(f"preset:{name}", PRESETS[name], seed)
