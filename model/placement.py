"""Where the norms of a block stand: each placement combines input, sub-layer and norms in one line.

    pre       y = x + f(norm(x))              GPT-2, Llama: the residual path is never normalised
    post      y = norm(x + f(x))              the original Transformer, BERT
    sandwich  y = x + norm'(f(norm(x)))       Gemma 2 and 3, Grok-1
    deepnorm  y = norm(alpha x + f(x))        arXiv 2203.00555
    parallel  y = x + f(norm(x)), f = attention + feed-forward over one norm      PaLM, GPT-J

Xiong et al. 2020 (arXiv 2002.04745) compare pre and post.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from .config import ModelConfig
from .wide import scaled

SubLayer = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms around one sub-layer: before it, and after it (where the placement puts that)."""

    before: SubLayer
    after: SubLayer
    alpha: float = 1.0


def pre(x_BSH: torch.Tensor, f: SubLayer, norms: Norms) -> torch.Tensor:
    """x + f(norm(x))."""
    return x_BSH + f(norms.before(x_BSH))


def post(x_BSH: torch.Tensor, f: SubLayer, norms: Norms) -> torch.Tensor:
    """norm(x + f(x))."""
    return norms.after(x_BSH + f(x_BSH))


def sandwich(x_BSH: torch.Tensor, f: SubLayer, norms: Norms) -> torch.Tensor:
    """x + norm'(f(norm(x)))."""
    return x_BSH + norms.after(f(norms.before(x_BSH)))


def deepnorm(x_BSH: torch.Tensor, f: SubLayer, norms: Norms) -> torch.Tensor:
    """norm(alpha x + f(x))."""
    return norms.after(scaled(x_BSH, norms.alpha) + f(x_BSH))


@dataclass(frozen=True, slots=True)
class Placement:
    """How a block combines, and the names of its norms: sub-layer -> (before, after), None for no norm there."""

    combine: Callable[[torch.Tensor, SubLayer, Norms], torch.Tensor]
    names: Mapping[str, tuple[str | None, str | None]]
    parallel: bool = False


_PRE = {
    "attention": ("input_layernorm", None),
    "cross_attention": ("pre_cross_attention_layernorm", None),
    "feed_forward": ("post_attention_layernorm", None),  # Llama's name for the norm before its mlp
}
_POST = {
    "attention": (None, "post_attention_layernorm"),
    "cross_attention": (None, "post_cross_attention_layernorm"),
    "feed_forward": (None, "post_feedforward_layernorm"),
}
_BOTH = {
    "attention": ("input_layernorm", "post_attention_layernorm"),
    "cross_attention": ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
    "feed_forward": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
PLACEMENTS = {
    "pre": Placement(pre, _PRE),
    "post": Placement(post, _POST),
    "sandwich": Placement(sandwich, _BOTH),
    "deepnorm": Placement(deepnorm, _POST),
    "parallel": Placement(pre, {"attention": ("input_layernorm", None)}, parallel=True),
}


def norm_names(config: ModelConfig) -> tuple[str, ...]:
    """The names of a block's norms, in the order of its forward."""
    names = PLACEMENTS[config.placement].names
    there = [n for n in names if n != "cross_attention" or config.cross_attention is not None]
    return tuple(name for sub_layer in there for name in names[sub_layer] if name is not None)


def norms_around(block: nn.Module, config: ModelConfig, sub_layer: str) -> Norms:
    """The norms of `block` around one of its sub-layers."""
    before, after = PLACEMENTS[config.placement].names[sub_layer]
    return Norms(
        before=nn.Identity() if before is None else block.get_submodule(before),
        after=nn.Identity() if after is None else block.get_submodule(after),
        alpha=1.0 if config.deepnorm is None else config.deepnorm.alpha,
    )
