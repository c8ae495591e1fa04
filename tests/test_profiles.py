"""Several optimisation profiles, from the recipe to the engine and the session: TensorRT-RTX builds them for real."""

import re

import numpy as np
import pytest

from blockforge.core.bundle import Bundle
from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.session import Session
from blockforge.pipeline import compile_bundle, export
from blockforge.recipe import recipe_from_dict

DECODE = {
    "min": "hidden_states:1x1x64",
    "opt": "hidden_states:4x1x64",
    "max": "hidden_states:8x1x64",
}
PREFILL = {
    "min": "hidden_states:1x1x64",
    "opt": "hidden_states:1x16x64",
    "max": "hidden_states:2x32x64",
}
RECIPE = {
    "name": "two",
    "model": {"preset": "llama-tiny", "part": "block"},
    "export": {"precisions": ["fp32"]},
    "profiles": [PREFILL, DECODE],
    "validate": {"limits": {"max_error_over_floor": 3.0}},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(bundle with a TensorRT-RTX engine, what the builder wrote of it)."""
    root = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKFORGE_CACHE", str(root / "cache"))
        bundle = export(RECIPE, root / "bundle")
        bundle = compile_bundle(bundle, ["tensorrt-rtx:sm89"])
    (listing,) = (root / "cache").rglob("listing.txt")
    return bundle, listing.read_text(encoding="utf-8")


def test_they_reach_the_builder_in_order(built):
    """By TensorRT's own account of the engine's inputs."""
    _, listing = built
    (line,) = (x for x in listing.split("\n") if x.startswith(" Name: hidden_states,"))
    told = re.findall(r"MinShape: \[(.*?)\], OptShape: \[(.*?)\], MaxShape: \[(.*?)\]", line)
    asked = [
        tuple(p[k].removeprefix("hidden_states:").replace("x", ",") for k in p)
        for p in (PREFILL, DECODE)
    ]
    assert told == asked


def test_the_manifest_and_its_recipe_keep_them(built):
    bundle, _ = built
    variant = Bundle.open(bundle.path).manifest.variant()
    sizes = [
        ShapeRange((1, 1, 64), (1, 16, 64), (2, 32, 64)),
        ShapeRange((1, 1, 64), (4, 1, 64), (8, 1, 64)),
    ]
    assert [p["hidden_states"] for p in variant.profiles] == sizes
    assert variant.profiles[0]["hidden_states"].max == tuple(variant.profile["hidden_states"].max)
    kept = recipe_from_dict(bundle.manifest.recipe)
    assert [s.model_dump() for s in kept.all_shapes] == [PREFILL, DECODE] and kept.shapes is None


def test_a_session_takes_what_lies_in_one_of_them(built):
    bundle, _ = built
    with Session(bundle) as session:
        assert len(session.profiles) == 2
        for shape in ((2, 32, 64), (8, 1, 64)):
            (output,) = session.run({"hidden_states": np.zeros(shape, np.float32)}).values()
            assert output.shape == shape
        with pytest.raises(UsageError, match="none of the 2 profiles holds these sizes"):
            session.run(
                {"hidden_states": np.zeros((8, 2, 64), np.float32)}
            )  # inside their hull only


MISTAKES = {
    "none": ([], "shapes is missing"),
    "twice": ([PREFILL, DECODE, PREFILL], "profile 2.*the same sizes as profile 0"),
    "another name": (
        [PREFILL, {k: v.replace("states", "status") for k, v in DECODE.items()}], "unknown input hidden_status",
    ),
    "order": ([PREFILL, DECODE | {"min": "hidden_states:9x1x64"}], "min 9, opt 4"),
    "too long": ([PREFILL, DECODE | {"max": "hidden_states:8x99999x64"}], "max sequence 99999"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_named_before_anything_is_written(case, tmp_path):
    profiles, words = MISTAKES[case]
    with pytest.raises(UsageError, match=words):
        export(RECIPE | {"profiles": profiles}, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_shapes_and_profiles_exclude_each_other():
    with pytest.raises(UsageError, match=r"give \[shapes\] for one.* or \[\[profiles\]\]"):
        recipe_from_dict(RECIPE | {"shapes": PREFILL})
    one = recipe_from_dict(RECIPE | {"profiles": [DECODE]})
    assert [s.model_dump() for s in one.all_shapes] == [DECODE]
