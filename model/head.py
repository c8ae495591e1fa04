"""What a model gives: logits, the last hidden state, or that and a pooled first token.

    logits      h W^T [* scale] [-> softcap * tanh(. / softcap)]         W: the embedding where it is tied
    masked_lm   norm(gelu(h Wt^T + bt)) W^T + b                          (BERT, arXiv 1810.04805)
    pooled      h, tanh(h[:, 0] Wp^T + bp)                               (BERT)

Shapes: B batch, S sequence, H hidden, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .activations import gelu
from .config import ModelConfig
from .norms import build_norm
from .wide import scaled, soft_capped


class Head(nn.Module):
    """Logits of the vocabulary: h W^T, where a tied head has no weight of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.head
        weight_VH = torch.empty(config.vocab_size, config.hidden_size)
        self.weight = None if config.tie_word_embeddings else nn.Parameter(weight_VH)

    def forward(self, hidden_BSH: torch.Tensor, embedding_VH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> [batch, sequence, vocabulary]."""
        weight_VH = embedding_VH if self.weight is None else self.weight
        logits_BSV = F.linear(scaled(hidden_BSH, self.config.scale), weight_VH)
        return soft_capped(logits_BSV, self.config.softcap)


class MaskedHead(nn.Module):
    """Logits of the token that a mask hides."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        weight_VH = torch.empty(config.vocab_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = build_norm(config.norm, config.hidden_size)
        self.weight = None if config.tie_word_embeddings else nn.Parameter(weight_VH)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))

    def forward(self, hidden_BSH: torch.Tensor, embedding_VH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> [batch, sequence, vocabulary]."""
        weight_VH = embedding_VH if self.weight is None else self.weight
        return F.linear(self.norm(gelu(self.dense(hidden_BSH))), weight_VH, self.bias)


class Pooler(nn.Module):
    """The first token's hidden state, through one dense layer and tanh."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_BSH: torch.Tensor, _embedding_VH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, sequence, hidden] -> itself and [batch, hidden]."""
        return hidden_BSH, torch.tanh(self.dense(hidden_BSH[:, 0]))


class NoHead(nn.Module):
    """The last hidden state as it is."""

    def __init__(self, _config: ModelConfig) -> None:
        super().__init__()

    def forward(self, hidden_BSH: torch.Tensor, _embedding_VH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> itself."""
        return hidden_BSH


HEADS: dict[str, type[Head | MaskedHead | Pooler | NoHead]] = {
    "logits": Head,
    "masked_lm": MaskedHead,
    "pooled": Pooler,
    "hidden": NoHead,
}
