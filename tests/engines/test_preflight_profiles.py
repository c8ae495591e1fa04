"""preflight on optimisation profiles: those that do not fit, and several at once."""

import pytest
from onnx import helper
from preflight_cases import graph, plain
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.engines.preflight import preflight
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
X = {"x": ("fp16", ["b", 8])}


def stored(serialised, folder):
    path = folder / "model.onnx"
    path.write_bytes(serialised)
    return path


def rules(report, *, failing=False):
    return {f.rule for f in report.findings if f.fails or not failing}


def run(*arguments):
    return CliRunner().invoke(app, ["preflight", *map(str, arguments)])


BAD_SHAPES = {
    "order": (("x:3x8", "x:2x8", "x:4x8"), "profile.range"),
    "name": (("y:1x8", "y:2x8", "y:4x8"), "profile.name"),
    "missing": (("", "", ""), "profile.missing"),
    "rank": (("x:1", "x:2", "x:4"), "profile.range"),
    "static": (("x:1x8", "x:1x9", "x:1x9"), "profile.range"),
}


@pytest.mark.parametrize(("shapes", "rule"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_a_profile_that_does_not_fit(shapes, rule, tmp_path):
    path = stored(graph([helper.make_node("Relu", ["x"], ["y"])], X, {"y": X["x"]}), tmp_path)
    assert rule in rules(preflight(path, RTX, shapes=shapes), failing=True)
    assert preflight(path, RTX, shapes=("x:1x8", "x:2x8", "x:4x8")).passed
    assert preflight(path, RTX, shapes=(None, "x:2x8", None)).passed


def test_without_a_profile_dynamic_axes_are_noted(tmp_path):
    report = preflight(stored(plain, tmp_path), RTX)
    assert rules(report) == {"profile.absent"} and report.passed


def test_further_profiles_are_looked_at_too(tmp_path):
    path = stored(graph([helper.make_node("Relu", ["x"], ["y"])], X, {"y": X["x"]}), tmp_path)
    good, other = ("x:1x8", "x:2x8", "x:4x8"), ("x:1x8", "x:1x8", "x:4x8")
    assert preflight(path, RTX, shapes=good, more_shapes=[other]).passed
    for bad, rule in ((BAD_SHAPES["order"][0], "profile.range"), (good, "profile.twice")):
        report = preflight(path, RTX, shapes=good, more_shapes=[other, bad])
        assert rule in rules(report, failing=True)
        assert all("profile 2" in f"{each.node} {each.found}" for each in report.failures)
    texts = zip(("--min", "--opt", "--max"), *(good, BAD_SHAPES["order"][0]), strict=True)
    options = [x for name, a, b in texts for x in (name, a, name, b)]
    done = run(path, "-t", "tensorrt-rtx:sm89", *options)
    assert done.exit_code == 1 and "profile 1: " in done.stdout
