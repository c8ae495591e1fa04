"""The command line: starts fast, speaks JSON, and each failure has its message and its exit code."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.console import emit

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = [
    command.name or command.callback.__name__.rstrip("_").replace("_", "-")
    for command in app.registered_commands
]
TINY = """
name = "tiny"
[model]
preset = "llama-tiny"
[shapes]
min = "input_ids:1x1"
opt = "input_ids:1x8"
max = "input_ids:2x16"
[validate.limits]
max_error_over_floor = 2.0
"""


def test_help_imports_nothing_heavy():
    heavy = {"torch", "onnx", "numpy", "onnxruntime", "tensorrt_rtx", "pydantic", "matplotlib"}
    code = (
        "import sys; from typer.testing import CliRunner; from blockforge.cli import app;"
        f"CliRunner().invoke(app, ['--help']); print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_speaks_json():
    for name in COMMANDS:
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0 and "--json" in shown.output, name


def test_the_console_script_is_the_module(blockforge):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"blockforge": "blockforge.cli:main"}
    assert blockforge("--version").stdout.startswith("blockforge ")


def recipe_file(folder, text=TINY):
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


# what is asked -> (changes to the recipe text, exit code, words of the message)
BAD_RECIPES = {
    "typo": (("preset", "preset_name"), 2, ["model.preset_name is not a field"]),
    "unknown preset": (("llama-tiny", "llama-9000"), 2, ["llama-9000", "llama-tiny"]),
    "missing checkpoint": (('preset = "llama-tiny"', 'checkpoint = "nowhere"'), 2, ["nowhere"]),
    "unknown input": (("input_ids:1x8", "tokens:1x8"), 2, ["tokens", "input_ids"]),
    "beyond the context": (("input_ids:2x16", "input_ids:2x4096"), 2, ["4096", "512"]),
    "limit without a text": (
        ("max_error_over_floor = 2.0", "max_error_over_floor = 2.0\nmax_perplexity_ratio = 2.0"),
        2,
        ["max_perplexity_ratio", "tokenizer"],
    ),
    "min above max": (("input_ids:2x16", "input_ids:2x4"), 2, ["axis 1", "max 4"]),
}


@pytest.mark.parametrize(("change", "code", "words"), BAD_RECIPES.values(), ids=BAD_RECIPES)
def test_a_bad_recipe_is_one_error_and_leaves_nothing(blockforge, tmp_path, change, code, words):
    recipe = recipe_file(tmp_path, TINY.replace(*change))
    done = blockforge("build", recipe, "-o", tmp_path / "out")
    assert done.returncode == code, done.stderr
    assert done.stderr.count("error:") == 1 and "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.toml"]


def test_a_missing_recipe_lists_the_ready_ones(blockforge):
    done = blockforge("build", "nowhere.toml")
    assert done.returncode == 2 and "smollm2-block" in done.stderr


def test_errors_are_json_too(blockforge, tmp_path):
    done = blockforge("build", tmp_path / "nowhere.toml", "--json")
    body = json.loads(done.stdout)
    assert body["exit_code"] == done.returncode == 2
    assert set(body["error"]) == {"asked", "found", "fix"}


@pytest.mark.parametrize("wrong", [["buidl"], ["build"], ["doctor", "--jsn"]])
def test_wrong_arguments_are_json_too(blockforge, wrong):
    done = blockforge(*wrong, "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["exit_code"] == 2


def test_json_is_strict_where_numbers_are_not_finite(capsys):
    emit({"a": [float("nan"), float("-inf"), 1.5]}, lambda: None, as_json=True)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    read = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert read == {"a": ["NaN", "-Infinity", 1.5]}


def test_what_this_machine_lacks_is_exit_3_before_any_work(blockforge, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        recipe = recipe_file(tmp_path)
        done = blockforge("build", recipe, "-o", tmp_path / "out", "-t", "tensorrt:sm90")
        assert done.returncode == 3, done.stderr
        assert "tensorrt" in done.stderr.lower()
        assert not (tmp_path / "out").exists()
    else:
        pytest.skip("TensorRT is installed here")


@pytest.mark.parametrize("target", ["tensorrt-rtx:sm90", "tensorflow:cpu", "sm89", ""])
def test_an_unknown_target_lists_what_exists(blockforge, tmp_path, target):
    done = blockforge("build", recipe_file(tmp_path), "-o", tmp_path / "out", "-t", target)
    assert done.returncode == 2, done.stderr
    assert "tensorrt-rtx:sm89" in done.stderr


@pytest.mark.parametrize("command", ["validate", "report", "inspect"])
def test_a_folder_that_is_no_bundle_is_exit_5(blockforge, tmp_path, command):
    done = blockforge(command, tmp_path)
    assert done.returncode == 5 and "manifest.json" in done.stderr


def test_doctor_speaks_json(blockforge):
    done = blockforge("doctor", "--json")
    assert done.returncode == 0
    findings = json.loads(done.stdout)
    assert {"name", "status", "detail", "fix"} <= set(findings[0])
    assert all(f["fix"] for f in findings if f["status"] != "ok")


def test_cost_speaks_json(blockforge):
    done = blockforge("cost", "llama-3-70b", "--batch", "2", "--gpu", "h200", "--json")
    body = json.loads(done.stdout)
    assert body["parameters"] == 70_553_706_496
    assert {"flops", "weight_bytes", "kv_cache_bytes_per_token", "rows"} <= set(body)


@pytest.mark.parametrize(
    "wrong", [["llama-9000"], ["llama-3-8b", "--gpu", "a100-40", "--dtype", "fp8_e4m3"]]
)
def test_cost_refuses_what_does_not_exist(blockforge, wrong):
    done = blockforge("cost", *wrong)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_plugins_lists_operators_and_writes_kernels(blockforge):
    listed = json.loads(blockforge("plugins", "--json").stdout)
    assert {"RMSNorm", "AddRMSNorm", "SwiGLU", "SwiGLUQuantize"} <= {row["name"] for row in listed}
    pytest.importorskip("triton")
    ptx = blockforge("plugins", "--ptx", "SwiGLU", "--arch", "89")
    assert ptx.returncode == 0 and ".target sm_89" in ptx.stdout
    unknown = blockforge("plugins", "--ptx", "SwiGLUs")
    assert unknown.returncode == 2 and "SwiGLU" in unknown.stderr


RMS_NORM = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 8] x) => (float[n, 8] y)
    <float two = {2.0}, float eps = {1e-12}, int64[1] axes = {-1}> {
        square = Pow(x, two)
        mean = ReduceMean(square, axes)
        shifted = Add(mean, eps)
        root = Sqrt(shifted)
        y = Div(x, root)
    }"""


@pytest.mark.parametrize(("power", "count"), [("2.0", 1), ("3.0", 0)], ids=["true", "near miss"])
def test_fuse_counts_and_explains(blockforge, tmp_path, power, count):
    import onnx

    text = RMS_NORM.replace("{2.0}", f"{{{power}}}")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    done = blockforge("fuse", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--json")
    body = json.loads(done.stdout)
    assert {key: body[key] for key in ("rms", "ln", "glu", "rope", "attn", "act")} == {
        "rms": count, "ln": 0, "glu": 0, "rope": 0, "attn": 0, "act": 0,
    }  # fmt: skip
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)
    shown = blockforge("fuse", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--explain")
    assert ("power 3" in shown.stdout) == (count == 0)


@pytest.mark.parametrize(
    "wrong", [["--ops", "mine"], ["--only", "norms"], ["nowhere.onnx"]], ids=lambda w: w[-1]
)
def test_fuse_refuses_what_does_not_exist(blockforge, tmp_path, wrong):
    import onnx

    onnx.save(onnx.parser.parse_model(RMS_NORM), tmp_path / "in.onnx")
    source = [wrong[0]] if len(wrong) == 1 else [tmp_path / "in.onnx", *wrong]
    done = blockforge("fuse", *source, "-o", tmp_path / "out.onnx")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "out.onnx").exists()
