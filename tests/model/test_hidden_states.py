"""A block's real inputs equal what transformers calls hidden_states."""

import torch

from blockforge.model.checkpoints import open_checkpoint, preset_checkpoint
from blockforge.model.hidden_states import block_inputs


def test_equal_to_transformers_hidden_states(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(61, (2, 9))
    with torch.inference_mode():
        expected = theirs(ids, output_hidden_states=True).hidden_states
    checkpoint = open_checkpoint(str(tmp_path))
    for layer in range(3):
        (found,) = block_inputs(checkpoint, layer, [ids])
        torch.testing.assert_close(found, expected[layer], rtol=1e-5, atol=1e-6)


def test_none_where_a_block_needs_more_than_hidden_states():
    checkpoint = preset_checkpoint("t5-tiny", seed=0)
    assert block_inputs(checkpoint, 0, [torch.zeros(1, 4, dtype=torch.int64)]) is None
