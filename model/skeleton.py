"""ModelConfig -> the module without numbers, on the meta device."""

import functools

import torch
from torch import nn

from ..core.errors import UsageError
from .block import SingleBlock, SingleCrossBlock
from .config import ModelConfig
from .decoder import Decoder, EncoderDecoder


def build_module(config: ModelConfig, *, layer: int | None = None) -> nn.Module:
    """The whole model (layer None) or one block, in eval mode on the meta device: shapes, no numbers.

    Whole: a Decoder, or an EncoderDecoder where the config has an encoder. One block: a SingleBlock or, of a decoder
    with an encoder, a SingleCrossBlock.

    Parameters are the module's only tensors (no buffers). Raises UsageError when the model has no such
    layer.
    """
    if layer is not None and not 0 <= layer < config.num_layers:
        last = config.num_layers - 1
        raise UsageError(
            f"layer {layer}", found=f"the model has layers 0 to {last}", fix="Name one"
        )
    with torch.device("meta"):
        if layer is None:
            module: nn.Module = (
                Decoder(config) if config.encoder is None else EncoderDecoder(config)
            )
        elif config.encoder is None:
            module = SingleBlock(config, layer)
        else:
            module = SingleCrossBlock(config, layer)
    return module.eval().requires_grad_(False)


@functools.cache
def _shapes(config: ModelConfig, layer: int | None) -> dict[str, tuple[int, ...]]:
    module = build_module(config, layer=layer)
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def parameter_shapes(
    config: ModelConfig, *, layer: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter of build_module(config, layer=layer), in its order."""
    return dict(_shapes(config, layer))
