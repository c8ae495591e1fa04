"""Build options: those that TensorRT-RTX has are built for real, those it lacks are named, and the table tells which."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from engine_graphs import HIDDEN, Chain, write
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UnavailableError, UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import building
from blockforge.engines.child import run_job
from blockforge.engines.compile import BuildOptions, CompileRequest, compile_engine, dry_run
from blockforge.engines.gpu import gpus
from blockforge.engines.layers_file import load_layers
from blockforge.engines.options import DIFFERENCES, check_options
from blockforge.engines.options_table import with_table
from blockforge.engines.target import Target
from blockforge.engines.tensorrt_api import FEATURES, load_api
from blockforge.schemas import schema_of

ROOT = Path(__file__).parents[2]
RTX = Target.parse("tensorrt-rtx:sm89")
TOKEN = ((1, 1, HIDDEN),) * 3
ANY = {  # option -> a value that is not its default
    "workspace_bytes": 1 << 28,
    "optimization_level": 2,
    "tf32": True,
    "timeout_seconds": 100.0,
    "timing_cache": "times",
    "version_compatible": True,
    "hardware_compatibility": "ampere_plus",
    "weight_streaming": True,
    "refit": True,
    "strip_plan": True,
    "tactic_sources": ("jit_convolutions",),
    "verbosity": "verbose",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write(Chain("fp16", blocks=3).build(), tmp_path_factory.mktemp("m"))


def profile(low=(1, 1, HIDDEN), best=(2, 8, HIDDEN), high=(4, 32, HIDDEN)):
    return {"hidden_states": ShapeRange(low, best, high)}


def request(model, folder, *more, **options):
    chosen = BuildOptions(**options)
    return CompileRequest(model, RTX, profile(), folder, 3, options=chosen, more_profiles=more)


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    return compile_engine(request(model, tmp_path_factory.mktemp("plain")))


def test_the_table_has_every_option():
    assert set(DIFFERENCES) == set(ANY) == {f.name for f in dataclasses.fields(BuildOptions)}
    assert {row.feature for row in DIFFERENCES.values()} - {None} <= set(FEATURES)


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "python -m blockforge.engines.options_table docs/targets.md"
    rows = [line.split(" | ") for line in page.split("\n") if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == list(DIFFERENCES)
    lacking = {row[0].strip("| `") for row in rows if row[5].startswith("no: ")}
    assert lacking == {"timing_cache", "version_compatible", "hardware_compatibility"}


def test_the_names_of_the_api_are_tensorrts():
    module = load_api("tensorrt-rtx").trt
    for row in DIFFERENCES.values():
        owner, _, member = row.api.partition(".")
        assert not owner or not member or hasattr(getattr(module, owner), member), row.api
        assert not owner or hasattr(module, owner), row.api


def test_what_tensorrt_rtx_has_is_built(model, tmp_path):
    """Every option that works there, at once."""
    has = {
        name: ANY[name]
        for name, row in DIFFERENCES.items()
        if not row.why_not("tensorrt-rtx") and not row.needs_gpu
    }
    assert len(has) == 7
    record = compile_engine(request(model, tmp_path, **has))
    assert record.kernels and (tmp_path / record.path).stat().st_size == record.bytes
    assert record.options == {
        "workspace_bytes": 1 << 28, "optimization_level": 2, "tf32": True, "weight_streaming": True,
        "tactic_sources": ["jit_convolutions"],
    }  # fmt: skip


@pytest.mark.parametrize("option", [n for n, r in DIFFERENCES.items() if r.tensorrt_rtx])
def test_what_it_lacks_is_named_before_anything_is_built(option, model, tmp_path):
    value = tmp_path / "times" if option == "timing_cache" else ANY[option]
    with pytest.raises(UsageError, match=f"tensorrt-rtx has no option {option}: "):
        compile_engine(request(model, tmp_path, **{option: value}))
    assert not (tmp_path / "engines").exists()


def force(model, folder, monkeypatch, **options):
    """Build with options that the check would refuse: they reach the builder."""
    asked = request(model, folder)
    monkeypatch.setattr(
        building, "run_job", lambda what, job, *a, **k: run_job(what, job | options, *a, **k)
    )
    return compile_engine(asked)


def test_the_table_is_right_about_hardware_compatibility(model, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="does not take hardware_compatibility"):
        force(model, tmp_path, monkeypatch, hardware_compatibility="ampere_plus")


def test_the_table_is_right_about_version_compatibility(model, tmp_path, monkeypatch):
    with pytest.raises(Exception, match="nvinfer_lean"):
        force(model, tmp_path, monkeypatch, version_compatible=True)


@pytest.mark.skipif(bool(gpus()), reason="with a GPU, refit builds")
@pytest.mark.parametrize("option", ["refit", "strip_plan"])
def test_the_table_is_right_about_what_needs_a_gpu(option, model, tmp_path, monkeypatch):
    with pytest.raises(UnavailableError, match="only where a GPU is at hand"):
        compile_engine(request(model, tmp_path, **{option: True}))
    with pytest.raises(Exception, match=r"cannot build|was ended"):
        force(model, tmp_path, monkeypatch, **{option: True})


def test_a_value_that_does_not_exist_lists_those_that_do(model, tmp_path):
    with pytest.raises(UsageError, match=r"no TacticSource cudnn.*jit_convolutions"):
        compile_engine(request(model, tmp_path, tactic_sources=("cudnn",)))


def test_a_workspace_too_small_is_told_in_tensorrts_words(model, tmp_path):
    with pytest.raises(Exception, match="workspace limit"):
        compile_engine(request(model, tmp_path, workspace_bytes=1 << 10))


def test_strip_plan_needs_refit():
    everything = frozenset(FEATURES)
    with pytest.raises(UsageError, match="strip_plan without refit"):
        check_options(BuildOptions(strip_plan=True), "tensorrt", everything, gpu=True, asked="x")
    both = BuildOptions(strip_plan=True, refit=True)
    check_options(both, "tensorrt", everything, gpu=True, asked="x")


def test_a_version_without_the_feature_is_named():
    options, without = (
        BuildOptions(weight_streaming=True),
        frozenset(FEATURES) - {"weight_streaming"},
    )
    with pytest.raises(UsageError, match="weight_streaming: the installed version"):
        check_options(options, "tensorrt", without, gpu=True, asked="x")


def test_several_profiles_count_the_kernels_of_the_first(model, plain, tmp_path):
    record = compile_engine(request(model, tmp_path, profile(*TOKEN)))
    assert record.kernels == plain.kernels and record.bytes > 1.5 * plain.bytes
    assert record.kernels_per_block == plain.kernels_per_block
    kernels = load_layers(tmp_path / record.layers).kernels
    assert not any("[profile" in t.name for k in kernels for t in (*k.inputs, *k.outputs))


def test_a_bad_further_profile_is_named(model, tmp_path):
    with pytest.raises(UsageError, match="has min 9"):
        compile_engine(request(model, tmp_path, profile(low=(9, 1, HIDDEN))))


def test_verbosity_decides_what_is_heard(model, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="blockforge")
    compile_engine(request(model, tmp_path))
    quiet = len(caplog.records)
    compile_engine(request(model, tmp_path, verbosity="verbose"))
    assert len(caplog.records) > 10 * quiet
    assert not any("Layers:" in record.getMessage() for record in caplog.records)


def test_a_lone_plan_says_how_it_was_built(model, plain, tmp_path):
    """Beside the plan and in the record: the same options; a plan built by default names none."""
    asked = request(model, tmp_path, tf32=True, optimization_level=1, verbosity="info")
    record = compile_engine(asked)
    assert record.options == {"tf32": True, "optimization_level": 1}
    assert load_layers(tmp_path / record.layers).options == record.options
    command = ["inspect", str(tmp_path / record.path)]
    shown = CliRunner().invoke(app, [*command, "--json"])
    (body,) = json.loads(shown.stdout)
    jsonschema.validate([body], schema_of("inspect"))
    assert body["options"] == record.options
    words = " ".join(CliRunner().invoke(app, command).stdout.split())
    assert "built with optimization_level 1, tf32 on" in words
    assert plain.options == {}


def test_a_dry_run_says_what_would_be_built_and_builds_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "run_job", None)
    plan = dry_run(request(model, tmp_path, profile(*TOKEN), optimization_level=1))
    assert plan.files == (
        "engines/tensorrt-rtx-sm89.plan",
        "engines/tensorrt-rtx-sm89.layers.json",
    )
    assert plan.options["optimization_level"] == 1 and len(plan.profiles) == 2
    assert plan.parts["runtime"] == load_api("tensorrt-rtx").version
    assert plan.parts["architectures"] == "sm89" and not plan.hit and "no cache" in plan.cached
    assert plan.preflight.passed and plan.nodes > 20
    assert any("inlined" in line for line in plan.legalized)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="no option timing_cache"):
        dry_run(request(model, tmp_path, timing_cache=tmp_path / "t"))


def test_a_dry_run_for_onnxruntime(model, tmp_path):
    plan = dry_run(CompileRequest(model, Target.parse("onnxruntime:cpu"), profile(), tmp_path))
    assert plan.files == ("engines/onnxruntime-cpu.layers.json",) and plan.parts == {}
