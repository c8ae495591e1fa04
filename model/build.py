"""The way to a module: build_module without numbers, load_module with a checkpoint's weights."""

import torch
from torch import nn

from .checkpoints.protocol import Checkpoint, check_names
from .signature import signature
from .skeleton import build_module, parameter_shapes

__all__ = ["build_module", "load_module", "parameter_shapes", "signature"]


def load_module(
    checkpoint: Checkpoint, *, layer: int | None = None, dtype: torch.dtype
) -> nn.Module:
    """The module with the checkpoint's weights in `dtype`, on the CPU, in eval mode.

    Reads one tensor at a time. Raises UsageError for a layer that does not exist; ArtefactError that lists missing
    and unknown tensors and wrong shapes, or names a weight that is NaN, infinite or beyond the range
    of `dtype`.
    """
    module = build_module(checkpoint.config, layer=layer)
    found = {name: checkpoint.shape(name) for name in checkpoint.names()}
    check_names(checkpoint.source, checkpoint.config, found)
    for name, _ in list(module.named_parameters()):
        path, _, attribute = name.rpartition(".")
        weight = nn.Parameter(checkpoint.read(name, dtype), requires_grad=False)
        setattr(module.get_submodule(path), attribute, weight)
    return module
