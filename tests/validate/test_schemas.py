"""JSON Schemas: what commands print fits theirs, and what they would never print does not."""

import json

import jsonschema
import pytest
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.console import emit
from blockforge.core.errors import UsageError
from blockforge.schemas import _TYPES, schema_of

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
