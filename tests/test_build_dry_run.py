"""`build --dry-run`: what would be exported, quantised, compiled and written; not a byte of it is."""

import json

import jsonschema
import pytest
from typer.testing import CliRunner

from blockforge import stages
from blockforge.cli import app
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.engines import building
from blockforge.engines.cache import Key, open_cache
from blockforge.engines.gpu import gpus
from blockforge.engines.outlook import known_parts
from blockforge.engines.request import CompileRequest
from blockforge.engines.target import Target
from blockforge.pipeline import _start, dry_run_build
from blockforge.recipe import recipe_from_dict
from blockforge.schemas import schema_of

RTX = "tensorrt-rtx:sm89"
SIZES = {"min": "input_ids:1x1", "opt": "input_ids:1x8", "max": "input_ids:2x16"}
TALL = {"min": "input_ids:1x1", "opt": "input_ids:8x1", "max": "input_ids:16x1"}
LIMITS = {"limits": {"max_error_over_floor": 2.0}, "limits_for": {"fp8": {"max_kl_divergence": 1.0}}}  # fmt: skip


def recipe(**sections):
    return {
        "name": "tiny",
        "model": {"preset": "llama-tiny"},
        "export": {"precisions": ["fp32", "fp8"]},
        "profiles": [SIZES, TALL],
        "engines": {"targets": ["onnxruntime:cpu", RTX], "options": {"optimization_level": 2}},
        "validate": LIMITS,
    } | sections


@pytest.fixture(autouse=True)
def nothing_is_made(monkeypatch):
    monkeypatch.delenv("BLOCKFORGE_CACHE", raising=False)
    monkeypatch.setattr(building, "run_job", None)
    monkeypatch.setattr(stages, "make_variants", None)


def toml(data, folder):
    """A recipe as a file; tables of plain values only."""
    lines = []

    def table(name, values):
        lines.append(f"[{name}]")
        plain = {k: v for k, v in values.items() if not isinstance(v, dict)}
        lines.extend(f"{k} = {json.dumps(v)}" for k, v in plain.items())
        for key, value in values.items():
            if key not in plain:
                table(f"{name}.{key}", value)

    lines.append(f"name = {json.dumps(data['name'])}")
    for name, section in data.items():
        for each in section if isinstance(section, list) else []:
            lines += [f"[[{name}]]", *(f"{k} = {json.dumps(v)}" for k, v in each.items())]
        if isinstance(section, dict):
            table(name, section)
    path = folder / "recipe.toml"
    path.write_text("\n".join(lines))
    return path


def test_it_says_everything_and_writes_nothing(tmp_path, monkeypatch):
    path = toml(recipe(), tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["build", str(path), "--dry-run", "--json"])
    assert done.exit_code == 0, done.exception
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.toml"]
    body = json.loads(done.stdout)
    jsonschema.validate(body, schema_of("build"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body | {"more": 1}, schema_of("build"))
    assert (body["bundle"], body["replaces"]) == ("bundles/tiny", False)
    single, eighth = body["graphs"]
    assert single["files"] == ["fp32/model.onnx", "fp32/model.onnx.data"] and not single["options"]
    assert "quantised from the fp16 graph" in eighth["made"]
    assert eighth["options"]["rounding"] == "gptq" and eighth["options"]["format"] == "fp8"
    assert "fp8/calibration.json" in eighth["files"]
    pairs = [(e["precision"], e["target"]) for e in body["engines"]]
    assert pairs == [(p, t) for p in ("fp32", "fp8") for t in ("onnxruntime:cpu", RTX)]
    ort, rtx = body["engines"][2:]
    assert ort["options"] == {} and ort["cached"] == "nothing is built for it"
    assert rtx["files"] == [f"fp8/engines/tensorrt-rtx-sm89.{end}" for end in ("plan", "layers.json")]  # fmt: skip
    assert rtx["options"]["optimization_level"] == 2 and rtx["options"]["tf32"] is False
    assert [p["input_ids"][2] for p in rtx["profiles"]] == [[2, 16], [16, 1]]
    assert "no cache" in rtx["cached"] and rtx["candidates"] == 0
    assert {"manifest.json", "golden.safetensors", "report.html"} < set(body["files"])


def test_the_tables_say_it_too(tmp_path):
    path = toml(recipe(), tmp_path)
    one = ["-t", "tensorrt-rtx:sm89+sm120", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["build", str(path), "--dry-run", *one])
    words = " ".join(done.stdout.split())
    for part in (
        "nothing is built", "tensorrt-rtx:sm89+sm120", "optimization_level 2", "a new folder",
        "1x1 to 8x1 to 16x1", "fp8/engines/tensorrt-rtx-sm89+sm120.plan", "rounding gptq", "keep none",
    ):  # fmt: skip
        assert part in words, part
    assert "onnxruntime:cpu" not in words and not (tmp_path / "out").exists()


def test_what_the_cache_holds(tmp_path, monkeypatch):
    """An engine of another graph with the same settings may fit; one of other settings never does."""
    made = recipe(export={"precisions": ["fp32"]}, validate={"limits": LIMITS["limits"]})
    job = _start(recipe_from_dict(made), tmp_path / "b", [RTX])
    asked = CompileRequest(
        tmp_path / "m.onnx", Target.parse(RTX), job.profile, tmp_path,
        options=job.recipe.engines.options, more_profiles=job.profiles[1:],
    )  # fmt: skip
    monkeypatch.setenv("BLOCKFORGE_CACHE", str(tmp_path / "cache"))
    parts = known_parts(asked) | {"graph": "1" * 64, "weights": "2" * 64}
    (tmp_path / "plan").write_bytes(b"plan")

    def keep(**changes):
        key = Key(parts | changes)
        assert open_cache().keep(key, {"plan": tmp_path / "plan"}, {"runtime": "r"})

    def seen():
        engine = dry_run_build(made, tmp_path / "b", targets=[RTX]).engines[0].engine
        return engine.candidates, engine.cached

    assert seen() == (0, "miss: none of its 0 engines has this runtime, architecture, profile and options")  # fmt: skip
    keep(architectures="sm120")
    keep(**{"option.optimization_level": "3"})
    keep(**{"profile2.input_ids": "[]"})
    assert seen()[0] == 0 and "none of its 3 engines" in seen()[1]
    keep()
    assert seen() == (1, "1 of its 4 engines fit as far as is known: the graph decides")


WRONG = {  # what is wrong -> (sections of the recipe, arguments, error, words)
    "a target": ({}, ["-t", "tensorrt-rtx:sm1"], UsageError, "has no 'sm1'"),
    "a limit": ({"validate": {"limits": LIMITS["limits"]}}, [], UsageError, "fp8 lacks max_kl"),
    "an option": ({"engines": {"targets": [RTX], "options": {"version_compatible": True}}}, [], UsageError, "no option version_compatible"),
    "a profile": ({"profiles": [SIZES | {"min": "input_ids:3x1"}]}, [], UsageError, "min 3"),
    "a text": ({"validate": LIMITS | {"text": "none.txt"}}, [], UsageError, "none.txt"),
    "a judge": ({}, ["--junit", "x.xml"], UsageError, "--junit, and nothing is judged"),
    "a cluster": ({}, ["--ray", "local"], UsageError, "--ray, and nothing is built"),
    "a checkpoint": ({"model": {"checkpoint": "missing"}}, [], (UsageError, ArtefactError), "missing"),
}  # fmt: skip


@pytest.mark.parametrize(("sections", "arguments", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_a_build_would_refuse(tmp_path, monkeypatch, sections, arguments, error, words):
    monkeypatch.chdir(tmp_path)
    path = toml(recipe(**sections), tmp_path)
    refused = CliRunner().invoke(app, ["build", str(path), "--dry-run", *arguments]).exception
    assert isinstance(refused, error) and words in str(refused), refused
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU here")
def test_what_is_missing_here(tmp_path):
    with pytest.raises(UnavailableError):
        dry_run_build(recipe(), tmp_path / "b", targets=["tensorrt:sm90"])


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="no bundle"):
        dry_run_build(recipe(), tmp_path)
