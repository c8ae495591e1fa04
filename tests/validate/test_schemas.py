"""JSON Schemas: what commands print fits theirs, and what they would never print does not."""

import dataclasses
import json
import math
from pathlib import Path

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.console import emit
from blockforge.core.bundle import seal, write_bundle
from blockforge.core.errors import UsageError
from blockforge.core.manifest import Manifest
from blockforge.schemas import _TYPES, schema_of
from blockforge.validate.divergence import Diff, Divergence
from blockforge.validate.divergence.diagnosis import Cause
from blockforge.validate.divergence.measure import LocalError

from .report.pages import engine, manifest, save_kernels, variant, verdict

BROKEN = verdict(passed=False, ratio=float("nan")).model_copy(
    update={"perplexity": float("inf"), "layer_errors": (float("-inf"), 0.1, 0.2)}
)


def printed(capsys, body):
    """What --json writes of it."""
    emit(body, dict, True)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", sorted(_TYPES))
def test_every_schema_is_one(name):
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]


def test_every_command_with_json_has_a_schema():
    commands = typer.main.get_command(app).commands
    spoken = {n for n, c in commands.items() if any("--json" in p.opts for p in c.params)}
    assert {"build", "diff-plan", "quantize"} <= spoken <= set(_TYPES)


def test_the_command_prints_them_and_lists_what_there_is():
    shown = CliRunner().invoke(app, ["--schema", "manifest"])
    assert shown.exit_code == 0 and json.loads(shown.stdout) == schema_of("manifest")
    wrong = CliRunner().invoke(app, ["--schema", "nothing"])
    assert isinstance(wrong.exception, UsageError) and "import-polygraphy" in str(wrong.exception)


@pytest.mark.parametrize("found", [verdict(), BROKEN], ids=["numbers", "not finite"])
def test_a_manifest_fits_as_file_and_as_printed(found, capsys, fits_schema):
    record = manifest(variant(verdicts=(found,), engines=(engine(),)), bench="bench.json")
    fits_schema("manifest", json.loads(record.model_dump_json()))
    body = {"bundle": "x", "passed": False, "manifest": record.model_dump(mode="json")}
    fits_schema("build", printed(capsys, body))


CHANGES = {
    "a new key": lambda v: v.update(more=1),
    "a missing key": lambda v: v.pop("passed"),
    "text for a number": lambda v: v.update(perplexity="large"),
    "another relation": lambda v: v["gates"][0].update(relation="<"),
    "an unknown type": lambda v: v["elements"][0].update(dtype="fp7"),
    "a lone end of an interval": lambda v: v["seeds"][0].update(interval=[1.0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_near_misses_do_not_fit(change, fits_schema):
    body = json.loads(manifest(variant(verdicts=(verdict(),))).model_dump_json())
    fits_schema("manifest", body)
    change(body["variants"][0]["verdicts"][0])
    with pytest.raises(jsonschema.ValidationError):
        fits_schema("manifest", body)


def test_planned_kernels_fit(tmp_path, fits_schema):
    path = save_kernels(tmp_path)
    done = CliRunner().invoke(app, ["inspect", str(path), "--all", "--json"])
    (plan,) = json.loads(done.stdout)
    assert len(plan["kernels"]) == 10 and plan["kernels_per_block"] == 2
    fits_schema("inspect", [plan])


def test_small_commands_and_errors_fit(fits_schema):
    done = CliRunner().invoke(app, ["doctor", "--json"])
    fits_schema("doctor", json.loads(done.stdout))
    fits_schema("error", {"error": {"asked": "a", "found": "b", "fix": ""}, "exit_code": 2})
    fits_schema("report", {"report": "bundles/x/report.html"})


@pytest.mark.parametrize(
    "arguments", [("cost", "llama-tiny"), ("cost", "bert-tiny"), ("plugins",)], ids=" ".join
)
def test_tables_without_a_file_fit(arguments, fits_schema):
    done = CliRunner().invoke(app, [*arguments, "--json"])
    fits_schema(arguments[0], json.loads(done.stdout))


def test_a_cache_fits(tmp_path, fits_schema):
    for action in ("ls", "prune", "verify"):
        done = CliRunner().invoke(app, ["cache", action, "--dir", str(tmp_path), "--json"])
        fits_schema("cache", json.loads(done.stdout))


def test_graphs_fit(tmp_path, fits_schema):
    """A norm in pieces, and a product of a double that TensorRT lacks."""
    from onnx import TensorProto, parser, save

    text = """<ir_version: 10, opset_import: ["" : 21]> g (double[2,8] x) => (double[2,8] y)
    <double e = {0.000001}, float[1] two = {2.0}, int64[1] axes = {-1}> {
      s = Mul (x, x)  m = ReduceMean (s, axes)  v = Add (m, e)  r = Sqrt (v)  y = Div (x, r) }"""
    model = parser.parse_model(text)
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    save(model, tmp_path / "g.onnx")
    path = str(tmp_path / "g.onnx")
    fused = CliRunner().invoke(app, ["fuse", path, "-o", str(tmp_path / "f.onnx"), "--json"])
    fits_schema("fuse", json.loads(fused.stdout))
    looked = CliRunner().invoke(app, ["preflight", path, "-t", "tensorrt-rtx:sm89", "--json"])
    (report,) = json.loads(looked.stdout)
    assert report["findings"]
    fits_schema("preflight", [report])
    with pytest.raises(jsonschema.ValidationError):
        fits_schema("preflight", [report | {"passed": "yes"}])


def test_what_trust_prints_fits(tmp_path, fits_schema):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    (tmp_path / "key.pem").write_bytes(Ed25519PrivateKey.generate().private_bytes(*form))
    with write_bundle(tmp_path / "b") as folder:
        (folder / "golden.safetensors").write_bytes(b"numbers")
        made = "2026-01-01T00:00:00Z"
        seal(folder, Manifest(name="x", created=made, recipe={}, tools={}, variants=()))
    for command, *options in (("sign", "--key", str(tmp_path / "key.pem")), ("verify",)):
        done = CliRunner().invoke(app, [command, str(tmp_path / "b"), *options, "--json"])
        fits_schema(command, json.loads(done.stdout))


def test_the_schema_of_diff_is_that_of_its_data(capsys, fits_schema):
    """Every field of the dataclasses, no other but what JSON adds, and numbers that JSON has no sign for."""
    schema = schema_of("diff")
    error = LocalError(math.inf, "row", (0, 1), math.nan, 0.0, 2.0**-11)
    cause = Cause("overflow", "it passes 65504", {"largest": math.inf, "rows": (1, 2)})
    first = Divergence("y", "y", "n", "Add", ("n",), ("x",), error, cause)
    for kind, found, more in (
        (Diff, schema, {"equal"}),
        (Divergence, schema["$defs"]["Divergence"], {"sentence"}),
        (LocalError, schema["$defs"]["LocalError"], set()),
        (Cause, schema["$defs"]["Cause"], set()),
    ):
        names = {field.name for field in dataclasses.fields(kind)} | more
        assert set(found["properties"]) == set(found["required"]) == names
        assert found["additionalProperties"] is False
    whole = Diff("a", "b", "i", "names", 1, 1, 1, first, errors={"y": error}, repro=Path("r"))
    body = printed(capsys, whole.as_dict())
    fits_schema("diff", body)
    assert (
        body["errors"]["y"] == body["first"]["error"] and body["errors"]["y"]["over"] == "Infinity"
    )
    assert body["first"]["cause"]["facts"] == {"largest": "Infinity", "rows": [1, 2]}
    assert body["first"]["sentence"] == first.sentence() and body["repro"] == "r"
    assert body["equal"] is False and body["first"]["error_in"] is None
