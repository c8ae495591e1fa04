"""What a model is, as data: one frozen dataclass per part, spelled with Hugging Face's names.

A family is a choice of parts (norm, attention with its positions, feed-forward, placement, embedding, head), never
a class of its own. Each choice is a `kind` that one dictionary in the part's file maps to its module, so that
a further norm or activation is a new row there and nothing else.
"""

import sys
from dataclasses import dataclass
from typing import Literal

from .attention_config import AttentionConfig, LatentConfig, RelativeBiasConfig
from .contradiction import check_sizes, contradiction
from .feed_forward_config import ExpertsConfig, FeedForwardConfig, FeedForwardKind
from .norm_config import NormConfig
from .rope_config import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

__all__ = [
    "AttentionConfig",
    "DeepNormConfig",
    "EmbeddingConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "FeedForwardKind",
    "FrequencyFactors",
    "HeadConfig",
    "LatentConfig",
    "LayerException",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "ModelConfig",
    "NormConfig",
    "RelativeBiasConfig",
    "RopeConfig",
    "RopeScaling",
    "YarnScaling",
]

_MOST_LAYERS, _LARGEST = 1024, 2**24  # beyond any model: a damaged file must not size the work
Placement = Literal["pre", "post", "sandwich", "parallel", "deepnorm"]


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """From ids to the first hidden state: scale * token [+ position] [+ type] [-> norm].

    positions: "learned" and "sinusoidal" are added here; "none" leaves them to the attention.
    num_types: token types (segments) with an embedding each, 0 for none. norm: the model's norm at the end.
    """

    scale: float = 1.0
    positions: Literal["none", "learned", "sinusoidal"] = "none"
    num_types: int = 0
    norm: bool = False


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What comes out: logits, the last hidden state, or that and a pooled first token.

    Logits are h W^T * scale, then softcap * tanh(logits / softcap) where softcap is set. "masked_lm" puts a dense
    layer, gelu and a norm before W, and a bias behind it (BERT).
    """

    kind: Literal["logits", "hidden", "pooled", "masked_lm"] = "logits"
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class DeepNormConfig:
    """norm(alpha x + sub_layer(x)); weights of values and feed-forward start beta times as large (arXiv 2203.00555)."""

    alpha: float
    beta: float

    @classmethod
    def for_layers(cls, num_layers: int) -> "DeepNormConfig":
        """alpha = (2 N)^(1/4) and beta = (8 N)^(-1/4), for an encoder or a decoder of N layers alone."""
        return cls((2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25)


@dataclass(frozen=True, slots=True)
class LayerException:
    """Layers whose attention or feed-forward differs from the model's; None: it does not."""

    layers: tuple[int, ...]
    attention: AttentionConfig | None = None
    feed_forward: FeedForwardConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`num_layers` blocks between an embedding and a head.

    placement says where the norms of a block stand; final_norm, whether one follows the last block. padding_mask: the
    model takes an attention_mask [batch, sequence] of ones and zeros. encoder: the model that a second attention
    (`cross_attention`) of every block looks at. Raises UsageError naming the sizes that contradict each other.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int
    norm: NormConfig
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    tie_word_embeddings: bool = False
    placement: Placement = "pre"
    embedding: EmbeddingConfig = EmbeddingConfig()
    head: HeadConfig = HeadConfig()
    final_norm: bool = True
    padding_mask: bool = False
    deepnorm: DeepNormConfig | None = None
    exceptions: tuple[LayerException, ...] = ()
    encoder: "ModelConfig | None" = None
    cross_attention: AttentionConfig | None = None

    def attention_of(self, layer: int) -> AttentionConfig:
        """The attention of block number `layer`."""
        found = (e.attention for e in self.exceptions if layer in e.layers and e.attention)
        return next(found, self.attention)

    def feed_forward_of(self, layer: int) -> FeedForwardConfig:
        """The feed-forward sub-layer of block number `layer`."""
        found = (e.feed_forward for e in self.exceptions if layer in e.layers and e.feed_forward)
        return next(found, self.feed_forward)

    def attentions(self) -> tuple[AttentionConfig, ...]:
        """The self-attentions that occur, each once, the model's own first."""
        others = (e.attention for e in self.exceptions if e.attention)
        return tuple(dict.fromkeys((self.attention, *others)))

    def __post_init__(self) -> None:
        """Check the sizes against each other."""
        check_sizes(
            {
                "num_layers": (self.num_layers, _MOST_LAYERS),
                "vocab_size": (self.vocab_size, _LARGEST),
                "hidden_size": (self.hidden_size, _LARGEST),
                "max_position_embeddings": (self.max_position_embeddings, _LARGEST),
                "norm eps": (self.norm.eps, sys.float_info.max),
                "embedding scale": (self.embedding.scale, sys.float_info.max),
                "logits scale": (self.head.scale, sys.float_info.max),
                "logits softcap": (self.head.softcap or 1, sys.float_info.max),
            }
        )
        cross = (self.cross_attention,) if self.cross_attention else ()
        for attention in (*self.attentions(), *cross):
            rope = attention.rope
            theta = 1.0 if rope is None else rope.rope_theta
            sizes = {name: (size, _LARGEST) for name, size in attention.sizes().items()}
            check_sizes({**sizes, "rope_theta": (theta, sys.float_info.max)})
            attention.check()
        for feed_forward in (self.feed_forward, *(e.feed_forward for e in self.exceptions)):
            if feed_forward is not None:
                check_sizes({"intermediate_size": (feed_forward.intermediate_size, _LARGEST)})
                feed_forward.check()
        if (self.placement == "deepnorm") != (self.deepnorm is not None):
            raise contradiction(
                f"placement {self.placement!r} and deepnorm {self.deepnorm}",
                'Give alpha and beta with placement "deepnorm", and only then',
            )
        if (self.encoder is None) != (self.cross_attention is None):
            raise contradiction(
                f"{'an' if self.encoder else 'no'} encoder and "
                f"{'a' if self.cross_attention else 'no'} cross attention",
                "The one is there for the other",
            )
        masked = self.padding_mask or not self.embedding.num_types
        if not masked or (self.encoder is not None and not self.encoder.padding_mask):
            raise contradiction(
                "token types, or an encoder to look at, without a padding_mask",
                "Such models take an attention_mask",
            )
