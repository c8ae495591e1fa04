"""What goes into a module and what comes out, as records; and numbers that its inputs may hold."""

import torch

from ..core.dtypes import DType, dtype_from_name
from ..core.manifest import TensorRecord
from .config import ModelConfig

Signature = tuple[tuple[TensorRecord, ...], tuple[TensorRecord, ...]]
_BATCH_SEQUENCE, _BATCH_SOURCE = ("batch", "sequence"), ("batch", "source")


def signature(config: ModelConfig, layer: int | None, dtype: DType) -> Signature:
    """Inputs, in the order of forward, and outputs of build_module(config, layer=layer) whose weights have `dtype`.

    A decoder maps input_ids [batch, sequence] to logits [batch, sequence, vocabulary]; a block maps hidden_states
    [batch, sequence, hidden] to output of the same shape. Encoders take an attention_mask (and token_type_ids)
    besides and give last_hidden_state (and pooler_output); a decoder that looks at an encoder takes the
    source's ids and mask, its block the source's hidden states and mask, over an axis "source".
    """
    if layer is None:
        return _inputs(config), _outputs(config, dtype)
    dims = (*_BATCH_SEQUENCE, config.hidden_size)
    inputs = [TensorRecord(name="hidden_states", dtype=dtype.value, dims=dims)]
    if config.encoder is not None:
        source = (*_BATCH_SOURCE, config.hidden_size)
        inputs += [
            TensorRecord(name="encoder_hidden_states", dtype=dtype.value, dims=source),
            _whole("encoder_attention_mask", 2, _BATCH_SOURCE),
        ]
    elif config.padding_mask:
        inputs.append(_whole("attention_mask", 2))
    return tuple(inputs), (TensorRecord(name="output", dtype=dtype.value, dims=dims),)


def _inputs(config: ModelConfig) -> tuple[TensorRecord, ...]:
    if config.encoder is not None:
        return (
            _whole("input_ids", config.vocab_size, _BATCH_SOURCE),
            _whole("attention_mask", 2, _BATCH_SOURCE),
            _whole("decoder_input_ids", config.vocab_size),
        )
    inputs = [_whole("input_ids", config.vocab_size)]
    if config.padding_mask:
        inputs.append(_whole("attention_mask", 2))
    if config.embedding.num_types:
        inputs.append(_whole("token_type_ids", config.embedding.num_types))
    return tuple(inputs)


def _outputs(config: ModelConfig, dtype: DType) -> tuple[TensorRecord, ...]:
    if config.head.kind in ("logits", "masked_lm"):
        dims = (*_BATCH_SEQUENCE, config.vocab_size)
        return (TensorRecord(name="logits", dtype=dtype.value, dims=dims),)
    size = config.hidden_size
    hidden = TensorRecord(
        name="last_hidden_state", dtype=dtype.value, dims=(*_BATCH_SEQUENCE, size)
    )
    if config.head.kind == "hidden":
        return (hidden,)
    pooled = TensorRecord(name="pooler_output", dtype=dtype.value, dims=("batch", size))
    return (hidden, pooled)


def _whole(name: str, below: int, axes: tuple[str, str] = _BATCH_SEQUENCE) -> TensorRecord:
    return TensorRecord(name=name, dtype=DType.INT64.value, dims=axes, below=below)


def draw_whole_numbers(
    record: TensorRecord, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Numbers that the integer input `record` may hold, of `shape`.

    A mask has rows of ones and then zeros, of random lengths of 1 or more: a row without a token means nothing. Other
    inputs are drawn evenly from [0, below).
    """
    assert record.below is not None, f"{record.name} comes from signature"
    dtype = dtype_from_name(record.dtype).torch
    if not record.name.endswith("attention_mask"):
        return torch.randint(record.below, shape, generator=generator, dtype=dtype)
    length_B1 = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
    return (torch.arange(shape[-1]) < length_B1).to(dtype)
