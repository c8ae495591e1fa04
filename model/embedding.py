"""From token ids to the first hidden state.

    hidden = scale * tokens[id] (+ positions[s]) (+ types[type])  (-> norm)
    sinusoidal: position[s, 2i] = sin(s / 10000^(2i/H)),  position[s, 2i + 1] = cos(s / 10000^(2i/H))  (arXiv 1706.03762)

Shapes: B batch, S sequence, H hidden, V vocabulary.
"""

import torch
from torch import nn

from .config import ModelConfig
from .norms import build_norm
from .rope import constant
from .wide import scaled


def build_embedding(rows: int, hidden_size: int) -> nn.Embedding:
    """A table [rows, hidden] without numbers.

    from_pretrained: drawing initial values on the meta device would import torch._dynamo (1.7 s).
    """
    embedding: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, hidden_size))  # type: ignore[no-untyped-call]
    return embedding


class SinusoidalPositions(nn.Module):
    """Fixed waves, computed in float32 (float64 for float64) and rounded to the hidden state's type."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        pairs = range(0, hidden_size, 2)
        self.frequencies = tuple(10000.0 ** (-i / hidden_size) for i in pairs)
        self.hidden_size = hidden_size

    def forward(self, hidden_BSH: torch.Tensor) -> torch.Tensor:
        """[sequence, hidden] for positions 0..S-1, in the type of `hidden_BSH`."""
        wide = torch.promote_types(hidden_BSH.dtype, torch.float32)
        frequency_R = constant(self.frequencies, wide, hidden_BSH.device)
        position_S = torch.arange(hidden_BSH.shape[1], device=hidden_BSH.device)
        angle_SR = position_S.to(wide).unsqueeze(-1) * frequency_R
        waves_SH = torch.stack((angle_SR.sin(), angle_SR.cos()), dim=-1).flatten(-2)
        return waves_SH[:, : self.hidden_size].to(hidden_BSH.dtype)


class LearnedPositions(nn.Module):
    """A row of a table for each position."""

    def __init__(self, length: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, hidden_size))

    def forward(self, hidden_BSH: torch.Tensor) -> torch.Tensor:
        """[sequence, hidden] for positions 0..S-1."""
        position_S = torch.arange(hidden_BSH.shape[1], device=hidden_BSH.device)
        return nn.functional.embedding(position_S, self.weight)


class EmbeddingSum(nn.Module):
    """What joins the token's own embedding before the first block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding, hidden_size = config.embedding, config.hidden_size
        self.scale = embedding.scale
        self.positions: nn.Module | None = None
        if embedding.positions == "learned":
            self.positions = LearnedPositions(config.max_position_embeddings, hidden_size)
        elif embedding.positions == "sinusoidal":
            self.positions = SinusoidalPositions(hidden_size)
        self.types = (
            build_embedding(embedding.num_types, hidden_size) if embedding.num_types else None
        )
        self.norm = build_norm(config.norm, hidden_size) if embedding.norm else None

    def forward(
        self, tokens_BSH: torch.Tensor, token_type_ids_BS: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embedded tokens -> the first hidden state, same shape and type."""
        hidden_BSH = scaled(tokens_BSH, self.scale)
        if self.positions is not None:
            hidden_BSH = hidden_BSH + self.positions(tokens_BSH)
        if self.types is not None:
            assert token_type_ids_BS is not None, "a model with token types takes token_type_ids"
            hidden_BSH = hidden_BSH + self.types(token_type_ids_BS)
        return hidden_BSH if self.norm is None else self.norm(hidden_BSH)
