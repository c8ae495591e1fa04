"""One FP32 graph, and the typed and quantised ones made from it: types, records, weights, and what stays on disk."""

import pytest

from blockforge.core.errors import UsageError
from blockforge.pipeline import build, export
from blockforge.recipe import recipe_from_dict

RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["fp16", "fp8"], "io": "graph"},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x16", "max": "input_ids:2x32"},
    "engines": {"targets": []},
    "validate": {
        "limits": {"max_error_over_floor": 2.0, "max_overflows": 0},
        "limits_for": {"fp8": {"max_kl_divergence": 0.2}},
    },
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return build(RECIPE, tmp_path_factory.mktemp("tiny") / "bundle")


def test_the_fp32_graph_is_not_left_where_it_was_not_asked_for(bundle):
    files = {p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()}
    assert files == {*bundle.manifest.files, "manifest.json"}
    assert {f.split("/")[0] for f in files if "/" in f} == {"fp16", "fp8", "polygraphy"}
    assert not [p for p in bundle.path.iterdir() if p.name.startswith(".")]


def test_each_variant_says_how_it_was_made(bundle):
    half, eight = bundle.manifest.variants
    assert half.typing is not None and half.quantization is None and half.computes == "fp16"
    assert {row.layer for row in half.typing.headroom} == {0, 1, None}
    assert all(row.before > 0 for row in half.typing.headroom)
    made = eight.quantization
    assert made is not None and made.format == "fp8" and eight.computes == "fp16"
    assert made.calibration == "seeded inputs [1, 2, 3, 4]"  # not seed 0, which is judged by
    kept = [row for row in made.linears if row.kept]
    assert [row.name for row in kept] == ["lm_head"]
    assert made.quantized_share == pytest.approx(1 - kept[0].share)
    assert all(row.scale and row.scale > 0 for row in made.linears if not row.kept)


def test_both_are_judged_and_the_report_shows_it(bundle):
    half, eight = bundle.manifest.variants
    (gated,) = (v for v in eight.verdicts if v.judged)
    assert [g.name for g in gated.gates if "KL" in g.name] == ["KL divergence"]
    assert not [g for g in gated.gates if "floor" in g.name]
    low, high = gated.kl_interval
    assert low < gated.kl_divergence < high
    assert gated.kl_divergence > 20 * half.verdicts[0].kl_divergence  # 8 bits cost more than 16
    page = (bundle.path / "report.html").read_text()
    assert "Quantised to fp8" in page and "From FP32 to fp16" in page


@pytest.mark.parametrize(
    ("precision", "io", "found"),
    [
        ("fp32", "graph", "fp32"),
        ("fp32", "fp16", "fp16"),
        ("fp16", "graph", "fp16"),
        ("fp16", "fp32", "fp32"),
        ("bf16", "graph", "bf16"),
        ("bf16", "fp32", "fp32"),
        ("bf16", "fp16", "fp16"),
    ],
)
def test_inputs_and_outputs_have_the_recipe_s_type(tmp_path, precision, io, found):
    block = {"preset": "llama-tiny", "part": "block"}
    shapes = {
        k: f"hidden_states:{v}x64" for k, v in {"min": "1x1", "opt": "1x8", "max": "2x8"}.items()
    }
    recipe = RECIPE | {
        "model": block,
        "shapes": shapes,
        "export": {"precisions": [precision], "io": io},
        "validate": {"limits": {"max_error_over_floor": 2.0}},
    }
    (variant,) = export(recipe, tmp_path / "b").manifest.variants
    assert {t.dtype for t in (*variant.inputs, *variant.outputs)} == {found}


def test_a_block_with_16_bit_inputs_is_quantised_on_inputs_of_its_own_type(tmp_path):
    """The calibration inputs are FP32, the typed block takes FP16."""
    shapes = {
        k: f"hidden_states:{v}x64" for k, v in {"min": "1x1", "opt": "1x8", "max": "2x8"}.items()
    }
    recipe = RECIPE | {
        "model": {"preset": "llama-tiny", "part": "block"},
        "shapes": shapes,
        "export": {"precisions": ["fp8"], "io": "graph"},
        "validate": {"limits_for": {"fp8": {"min_cosine": 0.99}}},
    }
    (variant,) = export(recipe, tmp_path / "b").manifest.variants
    assert {t.dtype for t in variant.inputs} == {"fp16"}
    assert (
        variant.quantization is not None
        and variant.quantization.quantized_share == pytest.approx(1)
    )


def test_a_calibration_text_that_is_no_file_is_one_error(tmp_path):
    recipe = recipe_from_dict(RECIPE | {"calibration": {"text": str(tmp_path / "none.txt")}})
    with pytest.raises(UsageError, match=r"none\.txt"):
        export(recipe, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (tmp_path / "none.txt").write_text("now it is one, but the preset has no tokenizer")
    with pytest.raises(UsageError, match="no tokenizer"):
        export(recipe, tmp_path / "b")
