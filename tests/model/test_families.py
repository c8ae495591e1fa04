"""Every family against transformers, from the saved folder alone: equal in float64, within its own error in float32."""

import pytest
import torch

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
