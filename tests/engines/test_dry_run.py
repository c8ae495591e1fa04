"""`compile --dry-run`: what would be built and what stands in the way, and not a byte written."""

import json

import jsonschema
import pytest
from engine_graphs import fp8_linear
from planned import bundle_of
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UsageError
from blockforge.engines import building
from blockforge.schemas import schema_of

RECIPE = {
    "name": "b",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["fp16"]},
    "shapes": {"min": "x:1", "opt": "x:1", "max": "x:1"},
    "validate": {"limits": {"max_error_over_floor": 3.0}},
}


def options(**chosen):
    return RECIPE | {"engines": {"options": chosen}}


def dry_run(bundle, *arguments):
    return CliRunner().invoke(app, ["compile", str(bundle), "--dry-run", *arguments])


def files(folder):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch):
    monkeypatch.setattr(building, "run_job", None)


def test_it_says_what_would_be_built_and_writes_nothing(tmp_path):
    bundle = bundle_of(tmp_path / "b", {"fp16": []}, recipe=options(optimization_level=2))
    before = files(tmp_path)
    done = dry_run(bundle, "-t", "tensorrt-rtx:sm89+sm120", "-t", "onnxruntime:cpu", "--json")
    assert done.exit_code == 0 and files(tmp_path) == before
    rtx, ort = json.loads(done.stdout)
    jsonschema.validate([rtx, ort], schema_of("compile"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([rtx | {"more": 1}], schema_of("compile"))
    assert (rtx["precision"], rtx["target"]) == ("fp16", "tensorrt-rtx:sm89+sm120")
    assert rtx["files"][0] == "engines/tensorrt-rtx-sm89+sm120.plan"
    assert rtx["options"]["optimization_level"] == 2 and rtx["options"]["tf32"] is False
    assert rtx["profiles"] == [{"hidden_states": [[1, 1, 64], [2, 8, 64], [4, 32, 64]]}]
    assert any("inlined blockforge::SwiGLU" in line for line in rtx["legalized"])
    assert rtx["parts"]["architectures"] == "sm89,sm120" and "no cache" in rtx["cached"]
    assert ort["parts"] == {} and ort["files"] == ["engines/onnxruntime-cpu.layers.json"]
    shown = dry_run(bundle, "-t", "tensorrt-rtx:sm89").stdout
    assert "optimization_level 2" in shown and "1x1x64 to 2x8x64 to 4x32x64" in shown
    after = [line for line in shown.splitlines() if line.strip()][1]
    assert after.split()[0] == "graph" and "─" not in shown.split("nothing stands")[0]
    assert "cache miss" in shown and "nothing stands in the way" in shown


def test_what_stands_in_the_way_is_exit_1(tmp_path):
    bundle = bundle_of(tmp_path / "b", {"fp8": []}, model=fp8_linear(), recipe=RECIPE)
    assert dry_run(bundle, "-t", "tensorrt-rtx:sm89").exit_code == 0
    done = dry_run(bundle, "-t", "tensorrt-rtx:sm80", "--json")
    (run,) = json.loads(done.stdout)
    assert done.exit_code == 1 and not run["preflight"]["passed"] and run["parts"] == {}
    assert "would refuse the graph" in run["cached"]
    assert any("sm80" in finding["found"] for finding in run["preflight"]["findings"])


def test_nothing_is_judged(tmp_path):
    bundle = bundle_of(tmp_path / "b", {"fp16": []}, recipe=RECIPE)
    failed = dry_run(bundle, "-t", "tensorrt-rtx:sm89", "--junit", str(tmp_path / "x.xml"))
    assert isinstance(failed.exception, UsageError) and "--junit" in str(failed.exception)


def test_an_option_that_the_product_lacks_is_an_error(tmp_path):
    bundle = bundle_of(tmp_path / "b", {"fp16": []}, recipe=options(version_compatible=True))
    failed = dry_run(bundle, "-t", "tensorrt-rtx:sm89")
    assert isinstance(failed.exception, UsageError)
    assert "has no option version_compatible" in str(failed.exception)
