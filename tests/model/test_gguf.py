"""GGUF files: written by the gguf package, loaded by us, equal to the transformers model they came from."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from blockforge.core.errors import ArtefactError, BlockforgeError, ExitCode
from blockforge.model.build import load_module, parameter_shapes
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.checkpoints.gguf_names import layout_from_gguf
from blockforge.model.config import FrequencyFactors, LinearScaling

IDS = torch.arange(60).view(2, 30)
SCALED = ("llama3 scaling", "linear scaling")


def test_float32_file_gives_the_models_weights_and_configuration(case, written, tmp_path):
    model, file = written(case)
    checkpoint = open_checkpoint(file)
    weights = {n.removeprefix("model."): w for n, w in model.named_parameters()}
    assert checkpoint.names() == list(parameter_shapes(checkpoint.config))
    assert set(checkpoint.names()) == set(weights)
    for name, weight in weights.items():
        assert torch.equal(checkpoint.read(name), weight), name
    model.save_pretrained(tmp_path / "hf")
    if case not in SCALED:  # the writer of the fixture leaves the scaling out
        assert checkpoint.config == open_checkpoint(tmp_path / "hf").config


def test_logits_equal_transformers(written, hf_model, hf_logits):
    """q and k rows un-permuted rightly, with 4 query and 2 key-value heads: nothing else gives the same numbers."""
    _, file = written("gqa tied")
    ours = load_module(open_checkpoint(file), dtype=torch.float64)(IDS)
    truth = hf_logits(hf_model("gqa tied", torch.float64), IDS)
    assert ((ours - truth).norm() / truth.norm()).item() < 1e-12


def test_unpermuting_agrees_with_transformers_loader(written):
    """Their code for the same job, on the rows alone; heads of 24 rows, 5 of them."""
    config = open_checkpoint(written("own head_dim")[1]).config
    rows = torch.arange(120.0)[:, None].expand(120, 80)
    theirs = LlamaTensorProcessor()._reverse_permute_weights(rows.numpy(), 5, 5)
    ours = layout_from_gguf(rows, "layers.0.self_attn.q_proj.weight", config)
    assert ours[:, 0].tolist() == theirs[:, 0].tolist() != rows[:, 0].tolist()
    v_proj = layout_from_gguf(rows, "layers.0.self_attn.v_proj.weight", config)
    assert torch.equal(v_proj, rows)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_1])
def test_quantised_tensors_are_dequantised_by_rows(written, kind):
    """Our rows equal what the gguf package's own reader and dequantiser give."""
    name = "blk.1.ffn_up.weight"

    def quantised(writer, tensors):
        values, _ = tensors[name]
        tensors[name] = (gguf.quantize(values, kind), kind)

    model, file = written("mha untied", edit=quantised)
    (stored,) = (t for t in gguf.GGUFReader(file).tensors if t.name == name)
    truth = gguf.dequantize(stored.data, stored.tensor_type)
    read = open_checkpoint(file).read("layers.1.mlp.up_proj.weight")
    assert read.shape == (112, 64)
    assert np.array_equal(read.numpy(), truth)
    error = (read - model.model.layers[1].mlp.up_proj.weight).abs().max()
    assert 0 < error < 0.1  # 4 bits over a block whose values lie within +-0.5


def test_rope_factors_of_the_file_equal_llama3_scaling(written, hf_model, hf_logits):
    """llama.cpp stores Llama 3's scaling as factors per frequency; here transformers' frequencies give them."""
    frequencies = hf_model("llama3 scaling").model.rotary_emb.inv_freq
    plain = 500000.0 ** (-torch.arange(0, 64, 2) / 64)
    factors = (plain / frequencies).numpy()

    def with_factors(writer, tensors):
        tensors["rope_freqs.weight"] = (factors, None)

    model, file = written("llama3 scaling", edit=with_factors)
    checkpoint = open_checkpoint(file)
    assert isinstance(checkpoint.config.attention.rope.scaling, FrequencyFactors)
    assert len(set(checkpoint.config.attention.rope.scaling.factors)) > 3
    ours = load_module(checkpoint, dtype=torch.float32)(IDS)
    torch.testing.assert_close(ours, hf_logits(model, IDS), rtol=1e-4, atol=1e-5)


def test_linear_scaling_of_the_file(written):
    def linear(writer, tensors):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    config = open_checkpoint(written("linear scaling", edit=linear)[1]).config
    assert config.attention.rope.scaling == LinearScaling(4.0)


def test_opening_reads_the_header_only(written, monkeypatch):
    """A tensor is mapped when it is read, by itself."""
    mapped = []
    real = np.memmap
    monkeypatch.setattr(np, "memmap", lambda *args: mapped.append(args[4][0]) or real(*args))
    checkpoint = open_checkpoint(written("gqa tied")[1])
    assert mapped == []
    checkpoint.read("layers.0.mlp.up_proj.weight")
    assert mapped == [112 * 64 * 4]


def tensor(name: str, values):
    return lambda writer, tensors: tensors.update({name: (values, None)})


def drop(name: str):
    return lambda writer, tensors: tensors.pop(name)


def add(method: str, *values):
    return lambda writer, tensors: getattr(writer, method)(*values)


def replaced(key: str, value) -> object:
    """Give a key another value, or (None) remove it."""

    def edit(writer, tensors):
        pairs = writer.kv_data[0]
        if value is None:
            del pairs[key]
        else:
            pairs[key].value = value

    return edit


NORM = "output_norm.weight"
WRONG = {
    "architecture": (add("add_string", "general.architecture", "gptj"), 2, "'gptj'.*llama"),
    "no block count": (replaced("llama.block_count", None), 2, "no llama.block_count"),
    "layers beyond reason": (replaced("llama.block_count", 4 * 10**9), 2, "at most 1024"),
    "heads": (replaced("llama.attention.head_count_kv", 3), 2, "no multiple of num_kv_heads 3"),
    "yarn": (
        add("add_rope_scaling_type", gguf.RopeScalingType.YARN),
        2,
        "scaling.type 'yarn'.*none, linear",
    ),
    "partial rotation": (replaced("llama.rope.dimension_count", 8), 2, "dimension_count is 8"),
    "two head sizes": (replaced("llama.attention.value_length", 8), 2, "value_length is 8"),
    "experts": (add("add_expert_count", 8), 2, "expert_count is 8"),
    "missing tensor": (drop(NORM), 5, "missing: norm.weight"),
    "no embedding": (drop("token_embd.weight"), 5, "missing: token_embd.weight"),
    "unknown tensor": (
        tensor("blk.0.attn_q.bias", np.ones(64, np.float32)),
        5,
        r"unknown: blk\.0\.attn_q\.bias",
    ),
    "unknown by our own name": (
        tensor("norm.weight", np.ones(64, np.float32)),
        5,
        r"weights of .*: unknown: norm\.weight",
    ),
    "unknown part": (
        tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32)),
        5,
        r"unknown: blk\.0\.attn_sinks\.weight",
    ),
    "wrong shape": (
        tensor(NORM, np.ones(63, np.float32)),
        5,
        r"norm.weight \[63\] instead of \[64\]",
    ),
    "integers": (tensor(NORM, np.ones(64, np.int32)), 2, "I32, which cannot be dequantised"),
    "factors": (tensor("rope_freqs.weight", np.ones(5, np.float32)), 2, "5 RoPE frequency factors"),
    "factor zero": (tensor("rope_freqs.weight", np.zeros(8, np.float32)), 2, "factor of 0"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_content_is_one_clear_error(written, fault):
    edit, code, words = WRONG[fault]
    with pytest.raises(BlockforgeError, match=words) as caught:
        open_checkpoint(written("mha untied", edit=edit)[1])
    assert caught.value.exit_code == ExitCode(code)


def patched(file: Path, at: int, data: bytes) -> Path:
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)
    return file


def type_field(file: Path, name: str) -> int:
    """Where the type number of a tensor of two dimensions is stored."""
    return file.read_bytes().index(name.encode()) + len(name) + 4 + 2 * 8


DAMAGE = {
    "no magic": (lambda f: patched(f, 0, b"GGML"), 5, "not a GGUF file"),
    "version": (lambda f: patched(f, 4, struct.pack("<I", 99)), 2, "GGUF version 99"),
    "other byte order": (lambda f: patched(f, 4, struct.pack(">I", 3)), 2, "GGUF version 50331648"),
    "huge counts": (lambda f: patched(f, 8, b"\xff" * 16), 5, "the file ends inside the header"),
    "huge key": (lambda f: patched(f, 24, b"\xff" * 8), 5, "the file ends inside the header"),
    "unknown type": (
        lambda f: patched(f, type_field(f, "blk.0.ffn_up.weight"), struct.pack("<I", 4)),
        2,
        "blk.0.ffn_up.weight.*quantisation type 4.*Q4_1",
    ),
    "blocks that do not divide": (
        lambda f: patched(f, type_field(f, "blk.0.ffn_down.weight"), struct.pack("<I", Type.Q8_0)),
        5,
        "rows of 112 values in Q8_0 blocks of 32",
    ),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damaged_file_is_one_clear_error(written, fault):
    damage, code, words = DAMAGE[fault]
    with pytest.raises(BlockforgeError, match=words) as caught:
        open_checkpoint(damage(written("mha untied")[1]))
    assert caught.value.exit_code == ExitCode(code)


def test_a_file_cut_anywhere_is_one_clear_error(written):
    """At every length of the header in steps, in the data, and one byte short."""
    _, file = written("gqa tied")
    data = file.read_bytes()
    padding = len(data) - max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(file).tensors)
    header = gguf.GGUFReader(file).data_offset
    for length in (*range(0, header, 97), header + 1, len(data) // 2, len(data) - padding - 1):
        file.write_bytes(data[:length])
        with pytest.raises(ArtefactError, match=r"ends inside|not a GGUF"):
            open_checkpoint(file)


def test_any_flipped_byte_of_the_header_is_an_error_of_ours_or_harmless(written):
    """No other exception, no hang, no huge allocation."""
    _, file = written("gqa tied")
    data = file.read_bytes()
    header = gguf.GGUFReader(file).data_offset
    refused = 0
    for at in range(0, header, 5):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            open_checkpoint(file)
        except BlockforgeError:
            refused += 1
    assert refused > header / 5 / 2


def test_weights_that_are_no_numbers_are_named(written):
    values = np.ones(64, np.float32)
    values[3] = np.inf
    checkpoint = open_checkpoint(written("gqa tied", edit=tensor(NORM, values))[1])
    with pytest.raises(ArtefactError, match=r"norm\.weight holds 1 values"):
        checkpoint.read("norm.weight")
