"""The polygraphy/ folder with the real tool: right graphs pass, a planted fault fails, saved results are judged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from polygraphy.comparator import RunResults
from polygraphy.json import load_json
from typer.testing import CliRunner

from blockforge.cli_polygraphy import import_polygraphy
from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.inference import run_file
from blockforge.validate.polygraphy.results import judge_results
from blockforge.validate.polygraphy.write import chosen_cases, write_polygraphy
from blockforge.validate.tensor_files import (
    RunnerOutputs,
    dump_run_results,
    load_run_results,
    load_tensors,
)

from .conftest import LIMITS

BIN = Path(sys.executable).parent
ENV = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def shell(*words, cwd):
    return subprocess.run(words, cwd=cwd, env=ENV, capture_output=True, text=True)


def faulty(bundle, folder):
    """A copy of the bundle whose fp32 graph has one row of one weight a hundredth too large."""
    shutil.copytree(bundle.path, folder)
    model = onnx.load(folder / "fp32" / "model.onnx")
    weight = next(t for t in model.graph.initializer if "layers.1.mlp.down" in t.name)
    array = onnx.numpy_helper.to_array(weight).copy()
    array[3] *= 1.01
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, folder / "fp32" / "model.onnx")
    return folder


def test_the_folder_is_in_the_manifest_and_no_pickle(decoder):
    bundle, truth, files = decoder
    assert set(files) <= set(bundle.manifest.files)
    bundle.verify()
    inputs = load_tensors(bundle.path / "polygraphy" / "inputs.json")
    outputs = load_tensors(bundle.path / "polygraphy" / "outputs.json")
    for case, given, expected in zip(truth.cases, inputs, outputs, strict=True):
        assert np.array_equal(given["input_ids"], case.feeds["input_ids"].numpy())
        assert np.array_equal(expected["logits"], truth.results[case.name]["logits"].numpy())
    for file in files:
        text = (bundle.path / file).read_text()
        assert '"tensor"' not in text and "pickle=True" not in text
        assert str(bundle.path) not in text  # no path of the machine that built it


def test_polygraphy_loads_what_is_in_the_folder(decoder):
    bundle, truth, _ = decoder
    folder = bundle.path / "polygraphy"
    feeds = load_json(str(folder / "inputs.json"))
    results = RunResults.load(str(folder / "outputs.json"))
    assert len(feeds) == len(truth.cases)
    ((name, iterations),) = results.items()
    assert name == "float64 reference" and iterations[0]["logits"].dtype == np.float64


def test_paths_are_those_of_the_manifest(decoder):
    """compare.sh writes `<variant>/model.onnx`; engines lie in `<variant>/engines`."""
    bundle, _, _ = decoder
    for variant in bundle.manifest.variants:
        assert variant.model == f"{variant.precision}/model.onnx"


def test_the_script_passes_a_right_graph_and_fails_a_planted_fault(decoder, tmp_path):
    bundle, _, _ = decoder
    saved = tmp_path / "results.json"
    done = shell(
        *("sh", bundle.path / "polygraphy/compare.sh", "fp32", "onnxruntime-cpu"),
        *("--save-outputs", saved),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count("logits: ok") == 3

    (ran,) = load_run_results(saved)
    judged = judge_results(bundle, ran, "fp32")
    assert judged.passed and not judged.findings and len(judged.errors) == 3

    wrong = faulty(bundle, tmp_path / "wrong")
    done = shell("sh", "polygraphy/compare.sh", "fp32", "--save-outputs", cwd=wrong)
    assert done.returncode == 2 and "no target" in done.stderr
    done = shell(
        *("sh", "polygraphy/compare.sh", "fp32", "onnxruntime-cpu"),
        *("--save-outputs", "wrong.json"),
        cwd=wrong,
    )
    assert done.returncode == 1 and "rms error" in done.stdout
    (ran,) = load_run_results(wrong / "wrong.json")
    judged = judge_results(bundle, ran, "fp32")
    assert not judged.passed
    assert [g.name for g in judged.gates if not g.passed] == ["logits: error over floor"]


def test_plain_polygraphy_run(decoder, tmp_path):
    """The tool alone, with nothing of ours but the two files; the tolerance is the recipe's, not a default."""
    bundle, _, _ = decoder
    limits = json.loads((bundle.path / "polygraphy/limits.json").read_text())
    gap = limits["variants"]["fp32"]["outputs"]["logits"]["greedy_gap"]
    words = (
        *(
            "polygraphy",
            "run",
            "fp32/model.onnx",
            "--onnxrt",
            "--atol",
            str(gap / 2),
            "--rtol",
            "0",
        ),
        *("--load-inputs", "polygraphy/inputs.json"),
        *("--load-outputs", "polygraphy/outputs.json"),
    )
    assert shell(*words, cwd=bundle.path).returncode == 0
    done = shell(*words, cwd=faulty(bundle, tmp_path / "wrong"))
    assert done.returncode == 1 and "FAILED" in done.stdout


@pytest.mark.parametrize(("kind", "variant"), [("decoder", "fp16"), ("block", "bf16")])
def test_the_python_script_runs_the_typed_evaluator(request, kind, variant, tmp_path):
    bundle, _, _ = request.getfixturevalue(kind)
    done = shell(sys.executable, bundle.path / "polygraphy/run.py", variant, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert ": ok" in done.stdout


def results_of(truth, change=lambda outputs: outputs, runner="trt"):
    """What a perfect runner would save: the truth in float32, changed case by case."""
    outputs = tuple(
        change({n: v.float().numpy() for n, v in truth.results[case.name].items()})
        for case in truth.cases
    )
    return RunnerOutputs(runner, outputs, (0.001,) * len(outputs))


def nan(outputs):
    outputs["logits"][0, 0, 0] = np.nan
    return outputs


def token(outputs):
    """One greedy token changed by a hair more than noise; nothing else."""
    row = outputs["logits"][0, 0]
    first, second = np.argsort(row)[::-1][:2]
    row[second] = row[first] + np.float32(1e-4)
    return outputs


CHANGES = {
    "right": (lambda o: o, []),
    "missing": (lambda o: {}, ["missing output"]),
    "extra": (lambda o: o | {"more": o["logits"]}, ["extra output"]),
    "nan": (nan, ["not finite", "greedy token"]),
    "zero": (lambda o: {"logits": o["logits"] * 0}, ["all zero"]),
    "token": (token, ["greedy token"]),
    "type": (lambda o: {"logits": o["logits"].astype("f2")}, ["dtype"]),
    "shape": (lambda o: {"logits": o["logits"][..., :1]}, ["shape"]),
    "empty": (lambda o: {"logits": o["logits"][:0]}, ["shape"]),
}


@pytest.mark.parametrize(("change", "rules"), CHANGES.values(), ids=CHANGES)
def test_results_are_judged_by_our_rules(decoder, change, rules):
    bundle, truth, _ = decoder
    judged = judge_results(bundle, results_of(truth, change), "fp32")
    assert judged.passed == (not rules)
    cases = len(truth.cases)
    assert len(judged.findings) == cases * len(rules)
    assert all(any(f": {rule}: " in f for f in judged.findings) for rule in rules)
    if not rules:
        assert all(m["logits"].max_ulps <= 0.5 for m in judged.measures.values())


def test_results_that_cannot_be_judged(decoder, tmp_path):
    bundle, truth, _ = decoder
    whole = results_of(truth)
    short = RunnerOutputs("trt", whole.outputs[:1], whole.seconds[:1])
    with pytest.raises(UsageError, match="1 iterations, the bundle has 3 cases"):
        judge_results(bundle, short)
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    path = copy / "polygraphy/limits.json"
    body = json.loads(path.read_text())
    for change in ({"variants": {}}, {"cases": []}, {"cases": 1}, {"variants": {"fp32": {}}}):
        path.write_text(json.dumps(body | change))
        with pytest.raises(ArtefactError, match="it does not fit"):
            judge_results(Bundle.open(copy), whole)
    path.write_text("{")
    with pytest.raises(ArtefactError, match="it does not fit"):
        judge_results(Bundle.open(copy), whole)
    path.unlink()
    with pytest.raises(ArtefactError, match="missing"):
        judge_results(Bundle.open(copy), whole)


def test_a_floor_that_is_not_finite_passes_nothing(decoder, tmp_path):
    bundle, truth, _ = decoder
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    path = copy / "polygraphy/limits.json"
    body = json.loads(path.read_text())
    floor = body["variants"]["fp32"]["floors"]["seeded odd"]["logits"]
    floor |= {"square_sum": None, "abs_sum": None, "max_abs": None, "nonfinite": 3}
    path.write_text(json.dumps(body))
    judged = judge_results(Bundle.open(copy), results_of(truth))
    assert not judged.passed and "floor not finite" in judged.findings[0]


def test_run_reads_the_folders_inputs(decoder, tmp_path, fits_schema):
    """`blockforge run` on Polygraphy's inputs: as many sets out as in; a script only where it is allowed."""
    bundle, truth, _ = decoder
    folder = bundle.path / "polygraphy"
    rows = run_file(bundle.path, folder / "inputs.json", tmp_path / "out", precision="fp32")
    fits_schema("run", rows)
    assert [row["shape"] for row in rows] == [[1, 16, 256], [2, 17, 256], [1, 1, 256]]
    for case, found in zip(truth.cases, load_tensors(tmp_path / "out"), strict=True):
        expected = truth.results[case.name]["logits"].numpy()
        assert np.abs(found["logits"] - expected).max() < 1e-4
    with pytest.raises(UsageError, match=r"3 sets, and \.npz holds one"):
        run_file(bundle.path, folder / "inputs.json", tmp_path / "out.npz")
    script = f"{folder}/checks.py:load_fp32"
    with pytest.raises(UsageError, match="a script"):
        run_file(bundle.path, script)
    assert run_file(bundle.path, script, precision="fp32", allow_script=True) == rows


def test_the_command(decoder, tmp_path, fits_schema):
    import typer

    bundle, truth, _ = decoder
    app = typer.Typer()
    app.command()(import_polygraphy)
    path, out = tmp_path / "results.json", tmp_path / "out"
    good, bad = results_of(truth), results_of(truth, nan, runner="ort")
    path.write_text(dump_run_results([good, bad]))

    def run(*words):
        return CliRunner().invoke(app, [str(path), *map(str, words)])

    listed = run("--json")
    assert listed.exit_code == 0
    fits_schema("import-polygraphy", json.loads(listed.stdout))
    rows = json.loads(listed.stdout)["runners"]
    assert [(r["runner"], r["iterations"]) for r in rows] == [("trt", 3), ("ort", 3)]
    assert isinstance(run("-o", out).exception, UsageError)  # which of the two?
    done = run("--bundle", bundle.path, "--runner", "trt", "-o", out, "--json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    fits_schema("import-polygraphy", body)
    assert body["verdict"]["passed"] and body["verdict"]["measures"]["seeded odd"]["logits"]["ulps"]
    assert [t["logits"].shape for t in load_tensors(out)] == [
        tuple(truth.results[c.name]["logits"].shape) for c in truth.cases
    ]
    failed = run("--bundle", bundle.path, "--runner", "ort")
    assert failed.exit_code == 1
    assert "failed" in failed.stdout and "not finite" in failed.stdout and "trt" in failed.stdout


def test_large_outputs_leave_the_largest_cases_out(decoder, tmp_path):
    bundle, truth, _ = decoder
    assert [c.name for c in chosen_cases(truth, 0)] == ["seeded smallest"]
    assert [c.name for c in chosen_cases(truth, 40_000)] == ["seeded opt", "seeded smallest"]
    assert chosen_cases(truth, 1 << 30) == truth.cases
    with pytest.raises(UsageError, match="no entry for fp16"):
        write_polygraphy(tmp_path, bundle.manifest, truth, {"fp32": LIMITS})
    write_polygraphy(tmp_path, bundle.manifest, truth, {"fp32": None, "fp16": None}, budget=0)
    body = json.loads((tmp_path / "polygraphy/limits.json").read_text())
    assert body["cases"] == ["seeded smallest"]
    assert body["variants"]["fp32"]["outputs"]["logits"]["max_rms"] is None  # no default


def test_writing_again_leaves_the_old_bundle_alone(decoder, tmp_path):
    """A hard link in the new folder is replaced, not written through."""
    bundle, truth, _ = decoder
    (tmp_path / "polygraphy").mkdir()
    (tmp_path / "polygraphy/limits.json").hardlink_to(bundle.path / "polygraphy/limits.json")
    limits = dict.fromkeys(("fp32", "fp16"))
    write_polygraphy(tmp_path, bundle.manifest, truth, limits)
    bundle.verify()
    seal(tmp_path, bundle.manifest)
