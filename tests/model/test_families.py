"""Every family against transformers, from the saved folder alone: equal in float64, within its own error in float32."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockforge.core.errors import ArtefactError
from blockforge.model.build import load_module
from blockforge.model.checkpoints import open_checkpoint

from .hf_families import FAMILIES, MASK
from .test_decoder import FLOAT32, relative


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    family.build(torch.float32).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def truth(family):
    return family.run(family.build(torch.float64))


def outputs(folder, family, dtype):
    module = load_module(open_checkpoint(folder), dtype=dtype)
    result = module(*family.inputs.values())
    return result if isinstance(result, tuple) else (result,)


def test_float64_equals_transformers(folder, family, truth):
    ours = outputs(folder, family, torch.float64)
    for actual, expected in zip(ours, truth, strict=True):
        assert expected.dtype == torch.float64
        assert relative(_kept(actual, family), _kept(expected, family)) < 1e-12


def test_float32_equals_transformers(folder, family, truth):
    """A router may give a token to another expert in float32: then not that token, but most are right."""
    for actual, expected in zip(outputs(folder, family, torch.float32), truth, strict=True):
        assert actual.dtype == torch.float32
        error = (actual.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert _kept(error, family).median() < 3 * FLOAT32


def _kept(values: torch.Tensor, family) -> torch.Tensor:
    """Without what stands at padding, which no one reads."""
    source = values.shape[1:2] == MASK.shape[1:] and "attention_mask" in family.inputs
    return values[MASK.bool()] if source else values


def edit(folder, tensors=(), **config) -> None:
    """Add tensors to the one weight file, change keys of config.json."""
    stored = load_file(folder / "model.safetensors")
    save_file(stored | dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))


def test_t5_with_a_head_of_its_own(tmp_path):
    """As v1.1 is published: untied and not scaled."""
    family = FAMILIES["t5"]
    model = family.build(torch.float64)
    family.build(torch.float32).save_pretrained(tmp_path)
    head = torch.randn(97, 64, generator=torch.Generator().manual_seed(5))
    edit(tmp_path, {"lm_head.weight": head}, tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(head.double())
    ours = load_module(open_checkpoint(tmp_path), dtype=torch.float64)(*family.inputs.values())
    assert relative(ours, family.run(model)[0]) < 1e-12


def test_a_head_that_a_tied_t5_file_holds_is_not_lost(tmp_path):
    FAMILIES["t5"].build(torch.float32).save_pretrained(tmp_path)
    edit(tmp_path, {"lm_head.weight": torch.zeros(97, 64)})
    with pytest.raises(ArtefactError, match=r"unknown: lm_head\.weight"):
        open_checkpoint(tmp_path)


def test_deepseeks_layer_behind_the_last_is_not_read(tmp_path):
    FAMILIES["deepseek v3"].build(torch.float32).save_pretrained(tmp_path)
    edit(tmp_path, {"model.layers.3.eh_proj.weight": torch.zeros(1)})
    open_checkpoint(tmp_path)
    edit(tmp_path, {"model.layers.4.eh_proj.weight": torch.zeros(1)})
    with pytest.raises(ArtefactError, match=r"unknown: model\.layers\.4\.eh_proj"):
        open_checkpoint(tmp_path)


def test_a_missing_expert_is_named(tmp_path):
    FAMILIES["deepseek v3"].build(torch.float32).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtefactError, match=r"layers\.1\.mlp\.experts\.up_proj\.weight comes from"):
        open_checkpoint(tmp_path)
