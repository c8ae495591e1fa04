"""The whole way on a tiny preset: bundle, engines, verdicts, gates, and what an interruption leaves."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import blockforge
from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, GateError, UsageError
from blockforge.core.manifest import Manifest
from blockforge.engines.layers_file import load_layers
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.pipeline import (
    compile_bundle,
    dry_run_build,
    report_bundle,
    validate_bundle,
)

RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"io": "fp32"},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x8", "max": "input_ids:2x32"},
    "engines": {"targets": ["onnxruntime:cpu", "tensorrt-rtx:sm89"]},
    "validate": {"limits": {"max_error_over_floor": 3.0, "min_token_agreement": 0.9}},
}


def changed(**sections):
    return {
        key: {**RECIPE[key], **sections[key]} if key in sections else value
        for key, value in RECIPE.items()
    }


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return blockforge.build(RECIPE, tmp_path_factory.mktemp("tiny") / "bundle")


def test_the_bundle_holds_what_the_manifest_says(bundle):
    bundle.verify()
    manifest = bundle.manifest
    assert [v.precision for v in manifest.variants] == ["fp32", "fp16"]
    assert manifest.failures == ()
    for variant in manifest.variants:
        assert [e.target for e in variant.engines] == RECIPE["engines"]["targets"]
        assert {t.dtype for t in variant.outputs} == {"fp32"}  # the recipe's io type
        assert (
            variant.operators["RMSNormalization"] == 5
        )  # two in each of two blocks, one at the end
        assert variant.operators["Attention"] == 2
        assert variant.inputs[0].below == preset_checkpoint("llama-tiny", seed=0).config.vocab_size
    files = {p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()}
    assert files == {*manifest.files, "manifest.json"}


def test_a_dry_run_names_every_file_that_the_build_wrote(bundle, tmp_path):
    found = dry_run_build(RECIPE, tmp_path / "b")
    written = {p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()}
    assert set(found.all_files) == written and not list(tmp_path.iterdir())
    assert dry_run_build(RECIPE, bundle.path).replaces and not found.replaces


def test_fp16_kernels_compute_in_fp16(bundle):
    (engine,) = (
        e for e in bundle.manifest.variant("fp16").engines if e.target == "tensorrt-rtx:sm89"
    )
    layers = load_layers(bundle.file(engine.layers))
    products = [k for k in layers.kernels if any("MatMul" in n for n in k.nodes)]
    assert len(products) >= 8  # of each block q, k, v together, o, gate and up together, down
    assert {k.dtype for k in products} == {"fp16"}
    assert engine.violations == ()


def test_the_session_computes_the_golden_outputs(bundle):
    from safetensors.numpy import load_file

    golden = load_file(bundle.file(bundle.manifest.golden))
    case = next(k.split("/")[0] for k in golden if "/input/" in k)
    with blockforge.Session(bundle, precision="fp32") as session:
        logits = session.run({"input_ids": golden[f"{case}/input/input_ids"]})["logits"]
    at = golden[f"{case}/at/logits"]
    expected = golden[f"{case}/output/logits"]
    np.testing.assert_allclose(logits[tuple(at.T)], expected, rtol=0, atol=1e-5)


def test_a_missed_limit_raises_and_still_leaves_the_report(tmp_path):
    recipe = changed(engines={"targets": []}, validate={"limits": {"max_error_over_floor": 1e-6}})
    with pytest.raises(GateError, match="error over floor"):
        blockforge.build(recipe, tmp_path / "b")
    failed = Bundle.open(tmp_path / "b")
    failed.verify()
    assert failed.manifest.failures and (tmp_path / "b" / "report.html").is_file()
    assert blockforge.build(recipe, tmp_path / "b", check=False).manifest.failures


def test_compile_validate_and_report_keep_the_bundle_whole(bundle, tmp_path):
    import shutil

    shutil.copytree(bundle.path, tmp_path / "b")
    copy = compile_bundle(Bundle.open(tmp_path / "b"), ["tensorrt-rtx:sm120"])
    copy.verify()
    targets = [e.target for e in copy.manifest.variant("fp16").engines]
    assert targets == ["onnxruntime:cpu", "tensorrt-rtx:sm89", "tensorrt-rtx:sm120"]
    judged = validate_bundle(copy)
    judged.verify()
    assert [e.target for e in judged.manifest.variant("fp16").engines] == targets
    assert report_bundle(judged).is_file()
    Bundle.open(tmp_path / "b").verify()
    bundle.verify()


def test_compile_needs_no_checkpoint(bundle, tmp_path):
    import shutil

    shutil.copytree(bundle.path, tmp_path / "b")
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"llama-tiny"', '"llama-gone"'))
    copy = compile_bundle(Bundle.open(tmp_path / "b"), ["tensorrt-rtx:sm120"])
    assert len(copy.manifest.variant("fp16").engines) == 3
    with pytest.raises(UsageError, match="llama-gone"):
        validate_bundle(copy)


def test_a_weight_that_no_input_reads_is_judged_too(bundle, tmp_path):
    import shutil

    import onnx

    shutil.copytree(bundle.path, tmp_path / "b")
    proto = onnx.load(tmp_path / "b/fp32/model.onnx", load_external_data=False)
    (tensor,) = (t for t in proto.graph.initializer if t.name == "embed_tokens.weight")
    offset = int({e.key: e.value for e in tensor.external_data}["offset"])
    data = tmp_path / "b/fp32/model.onnx.data"
    content = bytearray(data.read_bytes())
    content[offset + 4 * 64 * 255 + 3] ^= 0x80  # the sign of one number in the last token's row
    data.write_bytes(content)
    seal(tmp_path / "b", Manifest.model_validate_json((tmp_path / "b/manifest.json").read_text()))
    judged = validate_bundle(Bundle.open(tmp_path / "b"))
    assert any("weights unlike" in line for line in judged.manifest.failures)


def test_a_changed_graph_is_not_compiled(bundle, tmp_path):
    import shutil

    shutil.copytree(bundle.path, tmp_path / "b")
    data = tmp_path / "b/fp32/model.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"model\.onnx\.data"):
        compile_bundle(Bundle.open(tmp_path / "b"), ["tensorrt-rtx:sm120"])


def test_a_block_is_built_alone(tmp_path):
    recipe = {
        **RECIPE,
        "model": {"preset": "llama-tiny", "part": "block", "layer": 1},
        "shapes": {k: v.replace("input_ids", "hidden_states") + "x64" for k, v in RECIPE["shapes"].items()},
        "engines": {"targets": ["tensorrt-rtx:sm89"]},
        "validate": {"limits": {"max_error_over_floor": 3.0}},
    }  # fmt: skip
    built = blockforge.build(recipe, tmp_path / "b")
    variant = built.manifest.variant("fp16")
    assert [t.name for t in variant.inputs] == ["hidden_states"]
    assert variant.num_blocks == 1


def test_a_block_that_does_not_exist_is_refused(tmp_path):
    recipe = changed(model={"part": "block", "layer": 7})
    with pytest.raises(UsageError, match="2 blocks"):
        blockforge.build(recipe, tmp_path / "b")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing(tmp_path, how):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "tiny"\n[model]\npreset = "llama-tiny"\n[shapes]\nmin = "input_ids:1x1"\n'
        'opt = "input_ids:1x8"\nmax = "input_ids:2x16"\n[engines]\ntargets = ["tensorrt-rtx:sm89"]\n'
        "[validate.limits]\nmax_error_over_floor = 2.0\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "blockforge", "build", str(recipe), "-o", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out*/fp32/model.onnx")):  # half-way: the first graph is written
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, how)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert "Traceback" not in words
    assert [p.name for p in tmp_path.iterdir()] == ["r.toml"]


def test_inspect_shows_a_block(bundle):
    done = subprocess.run(
        [sys.executable, "-m", "blockforge", "inspect", str(bundle.path), "--json",
         "--precision", "fp16", "-t", "tensorrt-rtx:sm89"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (plan,) = json.loads(done.stdout)
    nodes = {node for kernel in plan["kernels"] for node in kernel["nodes"]}
    assert any(node.startswith(f"layers.{plan['block']}.self_attn/Attention") for node in nodes)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_run_reads_and_writes_tensors(bundle, tmp_path, suffix):
    from safetensors.numpy import load_file, save_file

    from blockforge.inference import run_file

    ids = np.arange(12, dtype=np.int64).reshape(2, 6)
    inputs, outputs = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    if suffix == ".npz":
        np.savez(inputs, input_ids=ids)
    else:
        save_file({"input_ids": ids}, inputs)
    (row,) = run_file(bundle.path, inputs, outputs, precision="fp32")
    assert row["shape"] == [2, 6, 256]
    found = (np.load(outputs) if suffix == ".npz" else load_file(outputs))["logits"]
    with blockforge.Session(bundle, precision="fp32") as session:
        np.testing.assert_array_equal(found, session.run({"input_ids": ids})["logits"])


# what is wrong with the file -> (its name, its content or tensors, words of the message)
BAD_INPUTS = {
    "no such file": ("in.npz", None, "no such file"),
    "unknown format": ("in.csv", b"1,2", ".safetensors"),
    "damaged": ("in.npz", b"PK\x03\x04 not a zip", "cannot be read"),
    "a pickle": ("in.npz", {"input_ids": np.array([{}], dtype=object)}, "cannot be read"),
    "other name": ("in.npz", {"ids": np.zeros((1, 4), np.int64)}, "input_ids"),
    "other type": ("in.npz", {"input_ids": np.zeros((1, 4), np.float32)}, "int64"),
    "beyond the profile": ("in.npz", {"input_ids": np.zeros((1, 99), np.int64)}, "32"),
}


@pytest.mark.parametrize(("name", "content", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_inputs_that_do_not_fit_are_one_error(bundle, tmp_path, name, content, words):
    from blockforge.core.errors import BlockforgeError
    from blockforge.inference import run_file

    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(BlockforgeError, match=words):
        run_file(bundle.path, path)


def test_demands_on_the_plan_fail_the_build_and_name_the_layers(tmp_path):
    """Two blocks, 21 kernels in fp16, 24 with separate projections; less is demanded, and fp8 products."""
    engines = {"targets": ["tensorrt-rtx:sm89"]}
    demanded = engines | {
        "max_kernels_per_block": 9,
        "require_fused": ["attention", "norm"],
        "require_dtype": {"gemm": "fp8"},
        "spared": ["lm_head"],
    }
    recipe = changed(export={"precisions": ["fp16"]}, engines=demanded)
    failed = blockforge.build(recipe, tmp_path / "b", check=False)
    lines = [line for line in failed.manifest.failures if "sm89" in line]
    assert len(lines) == 2, lines
    assert "max_kernels_per_block = 9: 10.5" in lines[0]
    assert 'gemm = "fp8_e4m3"' in lines[1] and "q_proj" in lines[1] and "lm_head" not in lines[1]
    for pack, count in ((True, 10.5), (False, 12)):
        met = engines | {"max_kernels_per_block": count, "require_dtype": {"gemm": "fp16"}}
        recipe = changed(export={"precisions": ["fp16"], "pack": pack}, engines=met)
        found = blockforge.build(recipe, tmp_path / "b", check=False).manifest
        assert found.failures == () and found.variant("fp16").engines[0].kernels_per_block == count
        assert bool(found.variant("fp16").packed) == pack
