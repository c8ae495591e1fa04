"""`blockforge diff` as it is called: exit codes, JSON, the files it writes."""

import json

import pytest
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UnavailableError, UsageError
from blockforge.graph.io import save_model

from .faults import FAULTS


@pytest.fixture(scope="module")
def faulty(planted_in, tmp_path_factory):
    path = tmp_path_factory.mktemp("faulty") / "faulty.onnx"
    save_model(planted_in("llama", FAULTS["wrong scale"].edit).model, path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


def test_equal_graphs_exit_with_0(exports):
    result = run(exports("llama"), exports("llama"), "--shapes", "input_ids:1x8")
    assert result.exit_code == 0, result.output
    assert "equal within rounding" in result.stdout


def test_a_divergence_exits_with_1_and_says_where_and_why(exports, faulty, tmp_path):
    result = run(exports("llama"), faulty, "-o", tmp_path / "repro", "--json")
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert body["equal"] is False
    assert body["first"]["node"] == "layers.0.self_attn/Attention"
    assert body["first"]["cause"]["kind"] == "scale"
    assert (tmp_path / "repro" / "repro.onnx").is_file()
    table = run(exports("llama"), faulty)
    assert "layers.0.self_attn/Attention" in table.stdout
    assert "has scale 0.125, the reference 0.25" in table.stdout


def test_a_tolerance_forgives(exports, faulty):
    assert run(exports("llama"), faulty, "--tolerance", "1000").exit_code == 0


def test_the_reference_of_a_recipe_is_the_pytorch_module(exports, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        'name = "tiny"\n[model]\npreset = "llama-tiny"\npart = "decoder"\n'
        '[shapes]\nmin = "input_ids:1x1"\nopt = "input_ids:1x8"\nmax = "input_ids:2x32"\n'
        '[engines]\ntargets = ["onnxruntime:cpu"]\n[validate.limits]\nmax_error_over_floor = 2.0\n'
    )
    result = run(recipe, exports("llama"), "--shapes", "input_ids:2x9", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert body["compared"] > 20


def test_wrong_arguments_are_refused(exports):
    assert isinstance(run(exports("llama"), "nothing.onnx").exception, UsageError)
    assert isinstance(run(exports("llama"), "x.plan").exception, UnavailableError)
    wrong = run(exports("llama"), exports("llama"), "--shapes", "ids:1x2")
    assert isinstance(wrong.exception, UsageError)
