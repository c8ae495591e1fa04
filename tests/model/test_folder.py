"""Hugging Face folders: what loads, and one clear error for each thing that does not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockforge.core.errors import ArtefactError, BlockforgeError, ExitCode, UsageError
from blockforge.model.build import load_module, parameter_shapes
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.config import LinearScaling, Llama3Scaling

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"


def edit_json(file: Path, **changes) -> None:
    """Change keys of a JSON file; None deletes the key."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def edit_weights(folder: Path, **changes) -> None:
    """Change tensors of the one weight file (dots written as __); None deletes the tensor."""
    tensors = load_file(folder / WEIGHTS)
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def test_sharded_folder_gives_the_same_weights(saved):
    model, folder = saved("mha untied", max_shard_size="60KB")
    shards = list(folder.glob("*.safetensors"))
    assert len(shards) > 2
    assert (folder / INDEX).is_file()
    checkpoint = open_checkpoint(folder)
    weights = {n.removeprefix("model."): w for n, w in model.named_parameters()}
    assert checkpoint.names() == list(parameter_shapes(checkpoint.config))
    assert set(checkpoint.names()) == set(weights)
    for name, weight in weights.items():
        assert checkpoint.shape(name) == tuple(weight.shape)
        assert torch.equal(checkpoint.read(name), weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_read_converts_once(saved, dtype):
    model, folder = saved("gqa tied")
    read = open_checkpoint(str(folder)).read("norm.weight", dtype)
    assert read.dtype == dtype
    assert torch.equal(read, model.model.norm.weight.to(dtype))


def test_a_16_bit_folder_loads(saved, hf_model):
    _, folder = saved("gqa tied")
    hf_model("gqa tied").to(torch.bfloat16).save_pretrained(folder)
    weight = open_checkpoint(folder).read("norm.weight")
    assert weight.dtype == torch.float32
    assert torch.equal(weight, weight.bfloat16().float())


def test_old_and_new_spelling_of_the_positions_agree(saved):
    _, folder = saved("llama3 scaling")
    new = open_checkpoint(folder).config
    scaling = json.loads((folder / "config.json").read_text())["rope_parameters"]
    theta = scaling.pop("rope_theta")
    edit_json(folder / "config.json", rope_parameters=None, rope_theta=theta, rope_scaling=scaling)
    assert open_checkpoint(folder).config == new
    assert new.attention.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert new.attention.rope.rope_theta == 500000.0
    linear = {"type": "linear", "factor": 2.0}  # the oldest spelling
    edit_json(folder / "config.json", rope_scaling=linear)
    assert open_checkpoint(folder).config.attention.rope.scaling == LinearScaling(2.0)


def test_absent_keys_mean_what_they_mean_to_transformers(saved):
    """Multi-head attention, head_dim = hidden / heads, an untied head."""
    _, folder = saved("mha untied")
    full = open_checkpoint(folder).config
    absent = ["num_key_value_heads", "head_dim", "tie_word_embeddings", "rope_parameters"]
    edit_json(folder / "config.json", **dict.fromkeys(absent))
    assert open_checkpoint(folder).config == full


def test_leftovers_of_old_files_are_ignored(saved, hf_logits):
    """Stored rotary frequencies, and a second copy of a tied embedding (here a wrong one)."""
    model, folder = saved("gqa tied")
    edit_weights(
        folder,
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8),
        lm_head__weight=torch.zeros(97, 64),
    )
    ids = torch.arange(20)[None]
    ours = load_module(open_checkpoint(folder), dtype=torch.float32)(ids)
    torch.testing.assert_close(ours, hf_logits(model, ids), rtol=1e-4, atol=1e-5)


def test_tokenizer_json_is_read_and_may_be_absent(saved):
    from tokenizers import Tokenizer, models

    _, folder = saved("gqa tied")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer() is None
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b")).save(
        str(folder / "tokenizer.json")
    )
    assert checkpoint.tokenizer().encode("a").ids == [0]
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ArtefactError, match="not a tokenizer"):
        checkpoint.tokenizer()


def config(**changes):
    return lambda folder: edit_json(folder / "config.json", **changes)


def rope(**changes):
    return config(rope_parameters={"rope_theta": 1e4} | changes)


def weights(**changes):
    return lambda folder: edit_weights(folder, **changes)


def cut(name: str, keep: float):
    def edit(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return edit


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str):
    return lambda folder: (folder / name).write_text(text)


def place(shard: str):
    return write(INDEX, json.dumps({"weight_map": {"model.norm.weight": shard}}))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def twice(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(data)


WRONG = {
    "no config": (remove("config.json"), 2, "no config.json"),
    "broken config": (write("config.json", '{"a": '), 5, "not readable as JSON"),
    "config is a list": (write("config.json", "[1]"), 5, "a JSON list"),
    "config in latin-1": (
        lambda folder: (folder / "config.json").write_bytes(b'{"a": "\xe9"}'),
        5,
        "not readable",
    ),
    "architecture": (config(architectures=["MambaForCausalLM"]), 2, "Mamba.*LlamaForCausalLM"),
    "no architecture": (config(architectures=None), 2, "no architectures.*LlamaForCausalLM"),
    "no hidden_size": (config(hidden_size=None), 2, "no hidden_size"),
    "size as text": (config(hidden_size="64"), 2, "hidden_size is '64'.*whole number"),
    "size as flag": (config(hidden_size=True), 2, "hidden_size is True"),
    "not divisible": (config(hidden_size=66, head_dim=None), 2, "66 is no multiple of 4 heads"),
    "head_dim of zero": (config(head_dim=0), 2, "head_dim is 0"),
    "heads of zero": (config(num_attention_heads=0, head_dim=None), 2, "0 heads"),
    "head groups": (config(num_key_value_heads=3), 2, "no multiple of num_kv_heads 3"),
    "activation": (config(hidden_act="gelu"), 2, "hidden_act is 'gelu'"),
    "biases": (config(attention_bias=True), 5, r"missing: layers\.0\.self_attn\.q_proj\.bias"),
    "quantised": (config(quantization_config={"bits": 4}), 2, "quantization_config"),
    "scaling": (rope(rope_type="ntk", factor=2.0), 2, "rope_type 'ntk'.*default, linear, llama3"),
    "longrope with too few factors": (
        rope(rope_type="longrope", short_factor=[1.0], long_factor=[1.0]),
        2,
        "1 RoPE frequency factors for head_dim 16",
    ),
    "longrope with words": (
        rope(rope_type="longrope", short_factor=["a"], long_factor=[1.0]),
        2,
        "short_factor holds more than numbers",
    ),
    "scaling without factor": (rope(rope_type="linear"), 2, "no factor"),
    "odd rotation": (
        rope(rope_type="default", partial_rotary_factor=0.45),
        2,
        "head_dim 7 is odd",
    ),
    "no weights": (remove(WEIGHTS), 2, r"no \*\.safetensors"),
    "pickled weights": (pickled, 2, "Pickled weights are not read"),
    "cut weights": (cut(WEIGHTS, 0.9), 5, "not a whole safetensors file"),
    "cut header": (cut(WEIGHTS, 0.001), 5, "not a whole safetensors file"),
    "empty weights": (cut(WEIGHTS, 0), 5, "not a whole safetensors file"),
    "two files without index": (twice, 5, "in more than one file"),
    "missing tensor": (weights(**{UP: None}), 5, "missing: layers.1.mlp.up_proj.weight"),
    "unknown tensor": (weights(extra=torch.ones(1)), 5, "unknown: extra"),
    "unknown by our own name": (
        weights(**{"model.norm.weight": None, "norm.weight": torch.ones(64)}),
        5,
        r"missing: norm\.weight; unknown: norm\.weight",
    ),
    "wrong shape": (
        weights(model__norm__weight=torch.ones(63)),
        5,
        r"wrong shape: norm.weight \[63\] instead of \[64\]",
    ),
    "all three": (
        weights(**{UP: None, "extra": torch.ones(1), "model.norm.weight": torch.ones(2, 2)}),
        5,
        "missing: layers.1.mlp.*unknown: extra.*wrong shape: norm",
    ),
    "integers": (weights(model__norm__weight=torch.ones(64, dtype=torch.int8)), 5, "type I8"),
    "layers too few": (config(num_hidden_layers=2), 5, r"unknown: model\.layers\.2.* and 1 more"),
    "index leaves the folder": (place("../secret.safetensors"), 5, "outside the folder"),
    "index with a folder": (place("sub/model.safetensors"), 5, "outside the folder"),
    "index with an absolute path": (place("/etc/passwd"), 5, "outside the folder"),
    "index with a backslash": (place("..\\secret.safetensors"), 5, "outside the folder"),
    "index with a dot": (place(".."), 5, "shard .. is missing"),
    "index with a number": (place(7), 5, "outside the folder"),
    "shard is missing": (place("model-7.safetensors"), 5, "shard model-7.safetensors is missing"),
    "index without map": (write(INDEX, "{}"), 5, "no weight_map"),
    "index names another tensor": (
        write(INDEX, json.dumps({"weight_map": {"model.other": WEIGHTS}})),
        5,
        "model.other is not in model.safetensors",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_folder_is_one_clear_error(saved, fault):
    _, folder = saved("mha untied")
    edit, code, words = WRONG[fault]
    open_checkpoint(folder)  # near miss: without the edit it opens
    edit(folder)
    with pytest.raises(BlockforgeError, match=words) as caught:
        open_checkpoint(folder)
    assert caught.value.exit_code == ExitCode(code)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(saved, value):
    _, folder = saved("mha untied")
    weight = torch.ones(64)
    weight[7] = value
    edit_weights(folder, model__norm__weight=weight)
    checkpoint = open_checkpoint(folder)
    for call in (
        lambda: checkpoint.read("norm.weight"),
        lambda: load_module(checkpoint, dtype=torch.float16),
    ):
        with pytest.raises(ArtefactError, match=r"norm\.weight holds 1 values.* of 64"):
            call()
    load_module(checkpoint, layer=0, dtype=torch.float16)  # the block does not read it


def test_weights_beyond_float16_are_told_from_damage(saved):
    _, folder = saved("mha untied")
    edit_weights(folder, model__norm__weight=torch.full((64,), 65520.0))
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ArtefactError, match=r"as float16: norm\.weight holds 6\.552e\+04"):
        checkpoint.read("norm.weight", torch.float16)
    assert checkpoint.read("norm.weight", torch.bfloat16).max() > 65000
    edit_weights(folder, model__norm__weight=torch.full((64,), 65519.0))  # rounds down to 65504
    assert checkpoint.read("norm.weight", torch.float16).max() == 65504


def test_an_unknown_name_is_refused(saved):
    checkpoint = open_checkpoint(saved("gqa tied")[1])
    for call in (checkpoint.shape, checkpoint.read):
        with pytest.raises(UsageError, match=r"lm_head.*It has embed_tokens"):
            call("lm_head.weight")


def test_other_files_are_refused(saved):
    _, folder = saved("gqa tied")
    with pytest.raises(UsageError, match=r"Name the folder of a \.safetensors file"):
        open_checkpoint(folder / WEIGHTS)
    with pytest.raises(UsageError, match=r"unknown kind '\.json'"):
        open_checkpoint(folder / "config.json")
