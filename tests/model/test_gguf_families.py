"""GGUF layouts beyond Llama's: names by the gguf package's own table, norms as llama.cpp's converter stores them."""

import gguf
import pytest
import torch

from blockforge.model.build import load_module
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.config import LayerException

from .hf_families import FAMILIES, Family
from .test_decoder import relative

ARCHITECTURES = {
    "qwen2": ("qwen2", gguf.MODEL_ARCH.QWEN2, {}),
    "qwen3": ("qwen3", gguf.MODEL_ARCH.QWEN3, {}),
    # the scalar that llama.cpp takes for granted is the head size
    "gemma2": ("gemma2", gguf.MODEL_ARCH.GEMMA2, {"query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3", gguf.MODEL_ARCH.GEMMA3, {"query_pre_attn_scalar": 24}),
}


def family(name: str) -> Family:
    base = FAMILIES[name]
    return Family(
        base.model, base.config, base.options | ARCHITECTURES[name][2], own_norms=base.own_norms
    )


def write(path, name: str) -> None:
    arch, number, _ = ARCHITECTURES[name]
    model = family(name).build(torch.float32)
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base((rope.get("full_attention") or rope)["rope_theta"])
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for stored, weight in model.named_parameters():
        values = weight.detach()
        if arch.startswith("gemma") and stored.endswith("norm.weight"):
            values = values + 1
        writer.add_tensor(names.get_name(stored, (".weight", ".bias")), values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_transformers(name, tmp_path):
    """Gemma's norms are stored as float32 of 1 + w: a rounding of 2^-24 that the float64 oracle does not make."""
    write(tmp_path / "model.gguf", name)
    ours = load_module(open_checkpoint(tmp_path / "model.gguf"), dtype=torch.float64)
    case = family(name)
    (truth,) = case.run(case.build(torch.float64))
    bound = 1e-12 if name.startswith("qwen") else 30 * 2**-24
    assert relative(ours(case.inputs["input_ids"]), truth) < bound


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_configuration_is_that_of_the_folder(name, tmp_path):
    write(tmp_path / "model.gguf", name)
    family(name).build(torch.float32).save_pretrained(tmp_path / "hf")
    found = open_checkpoint(tmp_path / "model.gguf").config
    assert found == open_checkpoint(tmp_path / "hf").config


def test_which_layers_of_gemma_have_no_window(tmp_path):
    """Every sixth from the sixth, with the RoPE base that the file states; the others have 10000."""
    write(tmp_path / "model.gguf", "gemma3")
    config = open_checkpoint(tmp_path / "model.gguf").config
    (exception,) = config.exceptions
    assert isinstance(exception, LayerException)
    assert exception.layers == (5,)
    assert (exception.attention.window, exception.attention.rope.rope_theta) == (None, 1e6)
    assert [config.attention_of(i).window for i in range(7)] == [20] * 5 + [None, 20]
    assert config.attention.rope.rope_theta == 10000.0
