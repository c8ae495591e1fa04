"""The whole model: token ids in; logits, or the last hidden state, out.

    hidden = embed(ids);  hidden = block(hidden) for each layer;  logits = norm(hidden) Wh^T

One class serves decoders and encoders: what a token sees is its attention's affair.

Shapes: B batch, S sequence, T source, H hidden, V vocabulary.
"""

import torch
from torch import nn

from .block import Block, build_relative_bias
from .config import ModelConfig
from .context import Context
from .embedding import EmbeddingSum, build_embedding
from .head import HEADS
from .masks import AttentionMasks, padding_mask
from .norms import build_norm
from .rope import RotaryEmbedding

Outputs = torch.Tensor | tuple[torch.Tensor, ...]


class Stack(nn.Module):
    """Everything between the tokens' embedding and the head: an encoder by itself is one."""

    def __init__(self, config: ModelConfig, embed_tokens: nn.Embedding | None = None) -> None:
        super().__init__()
        if embed_tokens is not None:
            self.embed_tokens = embed_tokens  # first, as the tokens' way is
        self.embeddings = EmbeddingSum(config)
        self.rotary_emb = RotaryEmbedding(config.attentions())
        self.masks = AttentionMasks(config.attentions())
        self.relative_bias = build_relative_bias(config)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = build_norm(config.norm, config.hidden_size) if config.final_norm else None

    def run(
        self,
        tokens_BSH: torch.Tensor,
        attention_mask_BS: torch.Tensor | None = None,
        token_type_ids_BS: torch.Tensor | None = None,
        encoder: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Embedded tokens -> the last hidden state, same shape and type.

        encoder: what a cross-attention looks at [batch, source, hidden], and the mask to add to its scores.
        """
        hidden_BSH: torch.Tensor = self.embeddings(tokens_BSH, token_type_ids_BS)
        bias = None if self.relative_bias is None else self.relative_bias(hidden_BSH.shape[1])
        masks = self.masks(hidden_BSH, attention_mask_BS, bias)
        encoder_BTH, encoder_mask = (None, None) if encoder is None else encoder
        context = Context(self.rotary_emb(hidden_BSH), masks, encoder_BTH, encoder_mask)
        for block in self.layers:
            hidden_BSH = block(hidden_BSH, context)
        if self.norm is not None:
            hidden_BSH = self.norm(hidden_BSH)
        return hidden_BSH

    forward = run


class Decoder(Stack):
    """A model of one stack, without cache: its tokens stand at positions 0..S-1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, build_embedding(config.vocab_size, config.hidden_size))
        self.lm_head = HEADS[config.head.kind](config)

    def forward(  # type: ignore[override]
        self,
        input_ids_BS: torch.Tensor,
        attention_mask_BS: torch.Tensor | None = None,
        token_type_ids_BS: torch.Tensor | None = None,
    ) -> Outputs:
        """Token ids [batch, sequence] int64 -> what the head gives, in the weights' type.

        attention_mask: 1 for a token and 0 for padding, where the config has a padding_mask. token_type_ids:
        where it has token types. Both int64 [batch, sequence].
        """
        tokens_BSH = self.embed_tokens(input_ids_BS)
        hidden_BSH = self.run(tokens_BSH, attention_mask_BS, token_type_ids_BS)
        outputs: Outputs = self.lm_head(hidden_BSH, self.embed_tokens.weight)
        return outputs


class EncoderDecoder(Decoder):
    """A decoder whose blocks also look at an encoder, which reads another text; both share the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None, "build_module asks"
        self.encoder = Stack(config.encoder)

    def forward(  # type: ignore[override]
        self,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        decoder_input_ids_BS: torch.Tensor,
    ) -> Outputs:
        """Source ids and mask [batch, source], target ids [batch, sequence] -> logits of the target's tokens."""
        encoder_BTH = self.encoder(self.embed_tokens(input_ids_BT), attention_mask_BT)
        tokens_BSH = self.embed_tokens(decoder_input_ids_BS)
        mask = padding_mask(attention_mask_BT, tokens_BSH)
        hidden_BSH = self.run(tokens_BSH, encoder=(encoder_BTH, mask))
        outputs: Outputs = self.lm_head(hidden_BSH, self.embed_tokens.weight)
        return outputs
