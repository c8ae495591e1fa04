"""What each kind of model takes and gives, and that drawn inputs are ones that it can take."""

import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.manifest import TensorRecord
from blockforge.model.build import load_module, signature
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.presets import PRESETS
from blockforge.model.signature import draw_whole_numbers

INPUTS = {
    ("llama-tiny", None): ["input_ids"],
    ("llama-tiny", 0): ["hidden_states"],
    ("bert-tiny", None): ["input_ids", "attention_mask", "token_type_ids"],
    ("bert-tiny", 1): ["hidden_states", "attention_mask"],
    ("t5-tiny-encoder", None): ["input_ids", "attention_mask"],
    ("t5-tiny-encoder", 0): ["hidden_states", "attention_mask"],
    ("t5-tiny", None): ["input_ids", "attention_mask", "decoder_input_ids"],
    ("t5-tiny", 1): ["hidden_states", "encoder_hidden_states", "encoder_attention_mask"],
}
OUTPUTS = {
    ("bert-tiny", None): {"last_hidden_state": (2, 6, 64), "pooler_output": (2, 64)},
    ("t5-tiny-encoder", None): {"last_hidden_state": (2, 6, 64)},
    ("t5-tiny", None): {"logits": (2, 6, 256)},
    ("llama-tiny", None): {"logits": (2, 6, 256)},
}
SIZES = {"batch": 2, "sequence": 6, "source": 9}


def drawn(record: TensorRecord, generator: torch.Generator) -> torch.Tensor:
    shape = tuple(SIZES.get(dim, dim) for dim in record.dims)
    if record.below is None:
        return torch.randn(shape, generator=generator)
    return draw_whole_numbers(record, shape, generator)


@pytest.mark.parametrize(("preset", "layer"), INPUTS)
def test_the_module_takes_the_inputs_and_gives_the_outputs(preset, layer):
    inputs, outputs = signature(PRESETS[preset], layer, DType.FP32)
    assert [record.name for record in inputs] == INPUTS[preset, layer]
    generator = torch.Generator().manual_seed(0)
    module = load_module(preset_checkpoint(preset), layer=layer, dtype=torch.float32)
    result = module(*(drawn(record, generator) for record in inputs))
    values = result if isinstance(result, tuple) else (result,)
    found = {record.name: tuple(value.shape) for record, value in zip(outputs, values, strict=True)}
    assert found == OUTPUTS.get((preset, layer), {"output": (2, 6, 64)})
    for record, value in zip(outputs, values, strict=True):
        assert tuple(SIZES.get(dim, dim) for dim in record.dims) == tuple(value.shape)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.endswith("-tiny")])
def test_every_tiny_model_gives_numbers_of_ordinary_size(preset):
    inputs, _ = signature(PRESETS[preset], None, DType.FP32)
    generator = torch.Generator().manual_seed(0)
    result = load_module(preset_checkpoint(preset), dtype=torch.float32)(
        *(drawn(record, generator) for record in inputs)
    )
    value = result[0] if isinstance(result, tuple) else result
    assert 0.1 < value.std() < 5


def test_masks_have_a_token_in_every_row_and_padding_behind():
    record = TensorRecord(name="attention_mask", dtype="int64", dims=("batch", "sequence"), below=2)
    mask = draw_whole_numbers(record, (200, 7), torch.Generator().manual_seed(0))
    assert mask.dtype == torch.int64
    assert set(mask.sum(1).tolist()) == set(range(1, 8))
    assert (mask.diff(dim=1) <= 0).all()
    assert set(mask.flatten().tolist()) == {0, 1}


def test_whole_numbers_stay_below_the_limit():
    record = TensorRecord(name="token_type_ids", dtype="int64", dims=("batch",), below=3)
    drawn_ids = draw_whole_numbers(record, (500,), torch.Generator().manual_seed(0))
    assert set(drawn_ids.tolist()) == {0, 1, 2}
