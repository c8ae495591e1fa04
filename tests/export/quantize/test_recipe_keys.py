"""What recipe, command and manifest make of epilogues and kv_cache."""

import json

import numpy as np
import pytest
import torch
from cached_decoders import Weights, decoder, past_name, present_name
from decoding import Decoding
from engine_graphs import write
from typer.testing import CliRunner

from blockforge.calibration import Calibration
from blockforge.cli import app
from blockforge.conversion import quantization_record
from blockforge.core.conversion import QuantizationRecord
from blockforge.core.errors import UsageError
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.export.search.cost import roofline
from blockforge.export.search.ranking import Budget
from blockforge.export.search.search import search_file
from blockforge.pipeline import build
from blockforge.recipe import recipe_from_dict

RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny", "part": "block"},
    "export": {"precisions": ["fp8"], "io": "graph"},
    "quantize": {"rounding": "nearest", "epilogues": True},
    "shapes": {k: f"hidden_states:{v}x64" for k, v in (("min", "1x1"), ("opt", "1x8"), ("max", "2x8"))},
    "engines": {"targets": []},
    "validate": {"limits": {"min_cosine": 0.98}},
}  # fmt: skip

WEIGHTS = {"export": {"precisions": ["int8-weights"], "io": "graph"}}
PLAIN = {"limits": {"max_error_over_floor": 2.0}}


def test_a_recipe_folds_epilogues_and_the_manifest_counts_them(tmp_path):
    (variant,) = build(RECIPE, tmp_path / "bundle").manifest.variants
    folded = {"RMSNormQuantize": 1, "AddRMSNormQuantize": 1, "SwiGLUPackedQuantize": 1}
    assert variant.quantization.epilogues == folded and variant.quantization.caches == ()
    assert {f"blockforge::{name}" for name in folded} < set(variant.operators)
    assert all(v.passed for v in variant.verdicts) and variant.verdicts


def test_every_key_of_the_section_is_an_option():
    section = recipe_from_dict(
        RECIPE | {"quantize": {"kv_cache": True, "epilogues": True}}
    ).quantize
    options = QuantizeOptions(**section.model_dump(exclude={"base", "search"}))
    assert options.kv_cache and options.epilogues


@pytest.mark.parametrize(
    ("key", "budget"),
    [
        ("max_kl_divergence", (1.5, "kl")),
        ("max_error", (1.5, "error")),
        ("max_perplexity_ratio", (1.5, "perplexity")),
        ("max_error_over_floor", (1.5, "floor")),
    ],
)
def test_every_budget_of_a_search(key, budget):
    recipe = recipe_from_dict(RECIPE | {"quantize": {"search": {key: 1.5}}})
    assert recipe.quantize.search.budget == budget


def test_the_manifest_tells_the_budget(tmp_path):
    wanted = {"rounding": "nearest", "search": {"max_error_over_floor": 20.0}}
    (variant,) = build(RECIPE | {"quantize": wanted}, tmp_path / "bundle").manifest.variants
    budget, *kept = variant.quantization.search
    assert budget.startswith("budget: error over noise floor at most 20; ")
    assert kept and budget.endswith(f"with {len(kept)} kept high")
    assert all("fp16, gains" in line and "% of the error" in line for line in kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantize": {}, "engines": {"plugins": ["RMSNormQuantize"]}}, "quantize.epilogues = true"),
        ({"quantize": {"kv_cache": True, "search": {"max_error": 0.1}}}, "kv_cache goes without search"),
        ({"quantize": {"search": {}}}, "max_kl_divergence, max_error, max_perplexity_ratio and max_error_over_floor, not 0"),
        ({"quantize": {"search": {"max_error": 0.1, "max_perplexity_ratio": 1.01}}}, "max_error_over_floor, not 2"),
        ({"quantize": {"search": {"max_perplexity_ratio": 1.0}}}, "greater than 1"),
        ({"quantize": {"search": {"max_error_over_floor": 1.0}}}, "greater than 1"),
        (WEIGHTS | {"quantize": {"observer": "amax"}}, "quantize.observer is read by fp8"),
        (WEIGHTS | {"quantize": {"attention": True}}, "quantize.attention is read by fp8"),
        (WEIGHTS, "quantize.epilogues is read by fp8"),
        ({"export": {"precisions": ["bf16"]}, "validate": PLAIN}, "quantize is read by fp8, fp8-weights,"),
    ],
)  # fmt: skip
def test_keys_that_would_do_nothing_are_refused(change, words):
    with pytest.raises(UsageError, match=words):
        recipe_from_dict(RECIPE | change)
    recipe_from_dict(RECIPE | {"engines": {"plugins": ["RMSNormQuantize"]}})
    recipe_from_dict(RECIPE | WEIGHTS | {"quantize": {"rounding": "nearest", "observer": "mse"}})
    recipe_from_dict(
        RECIPE
        | {"export": {"precisions": ["int8-weights", "fp8"]}, "quantize": {"observer": "amax"}}
    )


def test_a_search_refuses_a_cache(cached, tmp_path):
    options = QuantizeOptions(kv_cache=True)
    with pytest.raises(UsageError, match="Search without kv_cache"):
        search_file(
            cached[0],
            tmp_path / "x.onnx",
            *[cached[1]] * 2,
            options,
            Budget(1.0),
            roofline("l4", 1),
        )


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """A decoder with a cache of Concat, and what it reads at three steps."""
    folder = tmp_path_factory.mktemp("cached")
    source = write(decoder("concat", Weights(layers=1)), folder, "fp32.onnx")
    return source, Decoding(source, "concat", 1, torch.float32, steps=9).feeds[2::3]


def test_the_manifest_tells_every_cache_and_its_scale(cached, tmp_path):
    source, feeds = cached
    options = QuantizeOptions(rounding="nearest", kv_cache=True)
    report = quantize_file(source, tmp_path / "fp8.onnx", feeds, options)
    record = quantization_record(report, "fp16", "mse", Calibration(feeds=[], trial=[], source="x", tokens=3))  # fmt: skip
    again = QuantizationRecord.model_validate_json(record.model_dump_json())
    assert [(c.past, c.present) for c in again.caches] == [(past_name(0, p), present_name(0, p)) for p in ("key", "value")]  # fmt: skip
    assert all(c.scale == report.calibration.values[c.past].scale for c in again.caches)


def test_the_command_stores_the_cache(cached, tmp_path):
    source, feeds = cached
    for i, feed in enumerate(feeds):
        np.savez(tmp_path / f"{i}.npz", **{k: v.numpy() for k, v in feed.items()})
    arguments = (
        "quantize",
        source,
        "-o",
        tmp_path / "out.onnx",
        "--precision",
        "fp8",
        "--kv-cache",
    )
    more = ("--calibration", tmp_path, "--epilogues", "--rounding", "nearest", "--json")
    done = CliRunner().invoke(app, [str(a) for a in (*arguments, *more)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["quantization"]
    assert len(told["caches"]) == 2 and told["epilogues"] == {}
