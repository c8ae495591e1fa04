"""What really flows into a block: the hidden states that the decoder around it makes from a text.

Seeded normal numbers have no massive activations; a trained model's first token reaches 1e4 and more.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..core.dtypes import DType
from .build import load_module, parameter_shapes, signature
from .checkpoints.protocol import Checkpoint

MOST_PARAMETERS = 2_000_000_000  # the whole decoder is loaded in float32 for this


class _Reached(Exception):  # noqa: N818 no error: the block is reached, and the rest need not run
    def __init__(self, hidden_BSD: torch.Tensor) -> None:
        super().__init__()
        self.hidden_BSD = hidden_BSD


def block_inputs(
    checkpoint: Checkpoint, layer: int, texts: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """The float32 hidden states [B, S, D] that reach block `layer` when the decoder reads each of `texts` [B, S].

    None for a model whose block or decoder takes more than one input, and for one of more than
    MOST_PARAMETERS parameters. Raises what load_module raises.
    """
    config = checkpoint.config
    (block, _), (decoder, _) = (signature(config, part, DType.FP32) for part in (layer, None))
    size = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    if len(block) != 1 or len(decoder) != 1 or size > MOST_PARAMETERS:
        return None
    module = load_module(checkpoint, dtype=torch.float32)

    def stop(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs[0])

    module.get_submodule(f"layers.{layer}").register_forward_pre_hook(stop)
    return [_reach(module, ids_BS) for ids_BS in texts]


def _reach(module: torch.nn.Module, ids_BS: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            module(ids_BS)
    except _Reached as reached:
        return reached.hidden_BSD.clone()
    raise AssertionError("the block was not called")  # pragma: no cover
