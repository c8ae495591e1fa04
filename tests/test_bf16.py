"""A BF16 build goes the whole way; the runtime that has no BF16 kernels says so in one clear error."""

import pytest

import blockforge
from blockforge.core.errors import BuildError
from blockforge.engines.onnxruntime_api import lacks_kernel
from blockforge.pipeline import compile_bundle, dry_run_build

RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["bf16"]},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x8", "max": "input_ids:2x32"},
    "engines": {"targets": ["tensorrt-rtx:sm89"]},
    "validate": {"limits": {"max_error_over_floor": 2.0, "max_overflows": 0}},
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return blockforge.build(RECIPE, tmp_path_factory.mktemp("bf16") / "bundle")


def test_the_bundle_is_whole_and_its_kernels_compute_in_bf16(bundle):
    bundle.verify()
    assert bundle.manifest.failures == ()
    variant = bundle.manifest.variant("bf16")
    assert {t.dtype for t in variant.outputs} == {"bf16"}
    (engine,) = variant.engines
    assert set(engine.dtypes) == {"bf16"} and engine.violations == ()


def test_the_typed_evaluator_judges_and_onnx_runtime_is_a_note(bundle):
    typed, runtime = bundle.manifest.variant("bf16").verdicts
    assert typed.runner == "typed-evaluator" and typed.judged and typed.passed
    assert runtime.runner == "onnxruntime:cpu" and not runtime.judged
    (note,) = (n for n in runtime.notes if n.startswith("It could not run"))
    assert "NOT_IMPLEMENTED" in note and str(bundle.path.parent) not in note


def test_onnx_runtime_as_a_target_is_refused_with_its_words_and_a_way_out(bundle):
    with pytest.raises(BuildError, match="MatMul") as caught:
        compile_bundle(bundle, ["onnxruntime:cpu"])
    assert "bf16" in caught.value.fix and "leave the target onnxruntime:cpu out" in caught.value.fix
    bundle.verify()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"export": {"precisions": ["fp32", "bf16"]}},
        {
            "export": {"precisions": ["fp8-weights"]},
            "quantize": {"base": "bf16"},
            "validate": {"limits": {"max_kl_divergence": 1.0}},
        },
    ],
)
def test_a_recipe_is_refused_with_the_same_words_before_anything_is_made(
    changed, tmp_path, monkeypatch
):
    def make(*_):
        raise AssertionError("a graph was made")

    monkeypatch.setattr("blockforge.pipeline.export_stage", make)
    targets = {"engines": {"targets": ["tensorrt-rtx:sm89", "onnxruntime:cpu"]}}
    for run in (blockforge.build, dry_run_build):
        with pytest.raises(BuildError, match="bf16") as caught:
            run(RECIPE | targets | changed, tmp_path / "b")
        assert caught.value.fix == lacks_kernel("cpu")
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match="a graph was made"):  # near misses
        blockforge.build(RECIPE | changed, tmp_path / "b")
    with pytest.raises(AssertionError, match="a graph was made"):
        blockforge.build(RECIPE | targets | {"export": {"precisions": ["fp16"]}}, tmp_path / "b")


def test_a_session_says_the_same(bundle):
    with pytest.raises(BuildError, match="NOT_IMPLEMENTED"):
        blockforge.Session(bundle, precision="bf16")
