"""A sealed bundle of the tiny Llama, exported once: one FP32 graph, no engine."""

import pytest

from blockforge.pipeline import export

RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["fp32"]},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x16", "max": "input_ids:4x64"},
    "engines": {"targets": ["onnxruntime:cpu"]},
    "validate": {"tokens": 16, "limits": {"max_error_over_floor": 4.0}},
}


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory):
    return export(RECIPE, tmp_path_factory.mktemp("latency") / "tiny")
