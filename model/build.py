"""The way to a module: build_module without numbers, load_module with a checkpoint's weights."""

import torch
from torch import nn

from ..core.dtypes import DType
from ..core.manifest import TensorRecord
from .checkpoints.protocol import Checkpoint, check_names
from .config import ModelConfig
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


def signature(
    config: ModelConfig, layer: int | None, dtype: DType
) -> tuple[tuple[TensorRecord, ...], tuple[TensorRecord, ...]]:
    """Inputs and outputs of build_module(config, layer=layer) whose weights have `dtype`.

    The decoder maps input_ids [batch, sequence] to logits [batch, sequence, vocabulary]; a block maps hidden_states
    [batch, sequence, hidden] to output of the same shape.
    """
    axes = ("batch", "sequence")
    if layer is None:
        ids = TensorRecord(name="input_ids", dtype=DType.INT64.value, dims=axes)
        logits = TensorRecord(name="logits", dtype=dtype.value, dims=(*axes, config.vocab_size))
        return (ids,), (logits,)
    dims = (*axes, config.hidden_size)
    hidden = TensorRecord(name="hidden_states", dtype=dtype.value, dims=dims)
    return (hidden,), (TensorRecord(name="output", dtype=dtype.value, dims=dims),)
