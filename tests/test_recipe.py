"""Recipes: every ready one is right, every mistake is named."""

from pathlib import Path

import pytest

from blockforge.core.errors import UsageError
from blockforge.recipe import load_recipe, recipe_from_dict

READY = sorted((Path(__file__).resolve().parent.parent / "recipes").glob("*.toml"))
GOOD = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x8", "max": "input_ids:2x16"},
    "validate": {"limits": {"max_error_over_floor": 2.0}},
}


@pytest.mark.parametrize("path", READY, ids=lambda p: p.stem)
def test_ready_recipes_load_by_path_and_by_name(path):
    assert load_recipe(path) == load_recipe(path.stem)


def test_defaults():
    recipe = recipe_from_dict(GOOD)
    assert recipe.export.precisions == ("fp32", "fp16")
    assert recipe.layer is None
    block = recipe_from_dict(GOOD | {"model": {"preset": "llama-tiny", "part": "block"}})
    assert block.layer == 0


def test_bf16_is_a_precision():
    recipe = recipe_from_dict(GOOD | {"export": {"precisions": ["bf16", "fp16"]}})
    assert recipe.export.precisions == ("bf16", "fp16")


def test_each_precision_is_judged_by_its_own_limits():
    limits = {
        "limits": {"max_error_over_floor": 2.0},
        "limits_for": {"fp8": {"max_kl_divergence": 0.02}},
    }
    recipe = recipe_from_dict(
        GOOD | {"export": {"precisions": ["fp16", "fp8"]}, "validate": limits}
    )
    assert recipe.limits_of("fp16").max_error_over_floor == 2.0
    assert recipe.limits_of("fp8").max_kl_divergence == 0.02
    assert recipe.limits_of("fp8").max_error_over_floor is None


def test_builder_options_are_typed():
    recipe = recipe_from_dict(
        GOOD | {"engines": {"options": {"optimization_level": 2, "tactic_sources": ["jit"]}}}
    )
    assert recipe.engines.options.optimization_level == 2
    assert recipe.engines.options.tactic_sources == ("jit",)
    again = recipe_from_dict(recipe.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert again == recipe


def test_a_calibration_text_lies_beside_its_recipe(tmp_path):
    (tmp_path / "r.toml").write_text(
        "name = 'r'\nmodel = {preset = 'llama-tiny'}\ncalibration = {text = 'words.txt'}\n"
        "shapes = {min = 'input_ids:1x1', opt = 'input_ids:1x8', max = 'input_ids:2x16'}\n"
        "validate = {limits = {max_error_over_floor = 2.0}}\n"
    )
    recipe = load_recipe(tmp_path / "r.toml")
    assert recipe.calibration.text == str(tmp_path / "words.txt")


MISTAKES = {
    "typo in a section": ({"shape": {}}, ["shape is not a field"]),
    "typo in a field": ({"export": {"precision": ["fp32"]}}, ["export.precision is not a field"]),
    "two sources": ({"model": {"preset": "a", "checkpoint": "b"}}, ["either checkpoint or preset"]),
    "no source": ({"model": {}}, ["either checkpoint or preset"]),
    "layer of a decoder": ({"model": {"preset": "a", "layer": 1}}, ["layer goes with"]),
    "unknown precision": ({"export": {"precisions": ["fp12"]}}, ["export.precisions.0", "fp16"]),
    "precision twice": ({"export": {"precisions": ["fp32", "fp32"]}}, ["twice"]),
    "no precision": ({"export": {"precisions": []}}, ["export.precisions"]),
    "target twice": ({"engines": {"targets": ["a", "a"]}}, ["twice"]),
    "limit of NaN": ({"validate": {"limits": {"min_cosine": float("nan")}}}, ["min_cosine"]),
    "nothing to judge by": (
        {"validate": {"limits": {"max_overflows": 0}}},
        ["max_error_over_floor"],
    ),
    "no limits": ({"validate": {}}, ["validate.limits is missing"]),
    "empty checkpoint": ({"model": {"checkpoint": ""}}, ["model.checkpoint"]),
    "limit with a typo": ({"validate": {"limits": {"max_eror": 1.0}}}, ["limits.max_eror is not"]),
    "limit outside": (
        {"validate": {"limits": {"min_token_agreement": 98}}},
        ["not a finite number from 0 to 1"],
    ),
    "name with a slash": ({"name": "a/b"}, ["name"]),
    "fp8 by noise alone": (
        {"export": {"precisions": ["fp8"]}},
        ["validate.limits_for.fp8 lacks max_kl_divergence"],
    ),
    "limits for a precision that is not built": (
        {"validate": {"limits": {"max_error_over_floor": 2.0}, "limits_for": {"bf16": {}}}},
        ["limits_for.bf16 is not in export.precisions"],
    ),
    "limits of one precision only": (
        {"validate": {"limits_for": {"fp16": {"max_error_over_floor": 2.0}}}},
        ["validate.limits is missing: what fp32 is judged by"],
    ),
    "builder option with a typo": (
        {"engines": {"options": {"optimisation_level": 3}}},
        ["engines.options.optimisation_level is not a field"],
    ),
    "kernel demand with a typo": ({"engines": {"require_fused": ["nrom"]}}, ["require_fused.0"]),
    "two at once": ({"name": "", "shapes": {}}, ["name", "shapes.min is missing"]),
}


@pytest.mark.parametrize(("change", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(change, words):
    with pytest.raises(UsageError) as caught:
        recipe_from_dict(GOOD | change)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("content", [None, b"name = ", b"\xff\xff", b""])
def test_a_file_that_is_no_recipe_is_one_error(tmp_path, content):
    path = tmp_path / "r.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="recipe"):
        load_recipe(path)


def test_relative_paths_start_at_the_recipe(tmp_path):
    (tmp_path / "r.toml").write_text(
        'name = "x"\n[model]\ncheckpoint = "weights"\n[validate]\ntext = "t.txt"\n'
        "limits = {max_error_over_floor = 2.0}\n"
        '[shapes]\nmin = "a:1"\nopt = "a:1"\nmax = "a:1"\n'
    )
    recipe = load_recipe(tmp_path / "r.toml")
    assert recipe.model.checkpoint == str(tmp_path / "weights")
    assert recipe.validate_.text == str(tmp_path / "t.txt")
