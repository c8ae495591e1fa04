"""The whole decoder: token ids in, logits out.

    hidden = embed(ids);  hidden = block(hidden) for each layer;  logits = norm(hidden) Wh^T

Shapes: B batch, S sequence, H hidden, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .block import Block
from .config import ModelConfig
from .norms import build_norm
from .rope import RotaryEmbedding


class Head(nn.Module):
    """Logits of the vocabulary: h Wh^T, where a tied head has no weight of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        weight_VH = torch.empty(config.vocab_size, config.hidden_size)
        self.weight = None if config.tie_word_embeddings else nn.Parameter(weight_VH)

    def forward(self, hidden_BSH: torch.Tensor, embedding_VH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> [batch, sequence, vocabulary]."""
        return F.linear(hidden_BSH, embedding_VH if self.weight is None else self.weight)


class Decoder(nn.Module):
    """A causal language model without cache: every call sees its tokens at positions 0..S-1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding_VH = torch.empty(config.vocab_size, config.hidden_size)
        # from_pretrained: drawing initial values on the meta device would import torch._dynamo (1.7 s)
        self.embed_tokens = nn.Embedding.from_pretrained(embedding_VH)  # type: ignore[no-untyped-call]
        self.rotary_emb = RotaryEmbedding(config.attention.rope, config.attention.head_dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = build_norm(config.norm, config.hidden_size)
        self.lm_head = Head(config)

    def forward(self, input_ids_BS: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, sequence] int64 -> logits [batch, sequence, vocabulary] in the weights' type."""
        hidden_BSH = self.embed_tokens(input_ids_BS)
        cos_sin = self.rotary_emb(hidden_BSH)
        for block in self.layers:
            hidden_BSH = block(hidden_BSH, cos_sin)
        logits_BSV: torch.Tensor = self.lm_head(self.norm(hidden_BSH), self.embed_tokens.weight)
        return logits_BSV
