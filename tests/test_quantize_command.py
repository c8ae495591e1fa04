"""blockforge quantize: any graph to 16 and 8 bits, calibrated by tensors or by a text; every misuse is one error."""

import json

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.export.export import export_variant
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.schemas import schema_of


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """An FP32 decoder: token ids of 256 words in, logits out."""
    folder = tmp_path_factory.mktemp("graph") / "fp32"
    export_variant(
        preset_checkpoint("llama-tiny"),
        layer=None,
        precision=DType.FP32,
        io=DType.FP32,
        folder=folder,
    )
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with four sets of token ids."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for number in range(4):
        np.savez(folder / f"{number}.npz", input_ids=rng.integers(0, 100, (1, 24)))
    return folder


@pytest.fixture(scope="module")
def quantized(blockforge):
    """Runs the command and returns its JSON."""

    def run(*arguments):
        done = blockforge("quantize", *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        body = json.loads(done.stdout)
        jsonschema.validate(body, schema_of("quantize"))
        return body

    return run


def types_of(path):
    model = onnx.load(path)
    onnx.checker.check_model(str(path), full_check=True)
    return {i.data_type for i in model.graph.initializer}


def test_fp8_within_a_budget(blockforge, quantized, graph, data, tmp_path):
    output = tmp_path / "fp8.onnx"
    arguments = (graph, "-o", output, "--precision", "fp8", "--calibration", data)
    whole = quantized(*arguments)
    assert whole["typing"]["precision"] == "fp16" and whole["search"] is None
    assert whole["quantization"]["num_quantized"] == 8
    assert onnx.TensorProto.FLOAT8E4M3FN in types_of(output)
    again = quantized(output, "-o", tmp_path / "again.onnx", "--precision", "fp8")
    assert again["quantization"]["already"] and again["typing"] is None
    words = ("--keep", "lm_head", "--observer", "amax")
    copied = blockforge("quantize", output, "-o", tmp_path / "c.onnx", "--precision", "fp8", *words)
    assert copied.returncode == 0 and copied.stderr.rstrip().endswith(": --observer, --keep")
    worst = quantized(*arguments, "--max-kl", "10")["search"]
    assert not any(choice["kept"] for choice in worst["choices"])
    searched = quantized(*arguments, "--max-kl", str(worst["reached"] / 2))["search"]
    kept = [choice for choice in searched["choices"] if choice["kept"]]
    assert 0 < len(kept) < 8 and searched["reached"] <= worst["reached"] / 2


def test_a_text_with_a_tokenizer(blockforge, quantized, graph, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(90)} | {"[UNK]": 90}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i % 90}" for i in range(200)))
    arguments = (graph, "-o", tmp_path / "bf16.onnx", "--precision", "bf16", "--calibration", text)
    refused = blockforge("quantize", *arguments)
    assert refused.returncode == 2 and "--tokenizer tokenizer.json" in refused.stderr
    done = quantized(*arguments, "--tokenizer", tmp_path / "tokenizer.json")
    assert done["quantization"] is None
    assert all(row["source"] in ("measured", "bound") for row in done["typing"]["headroom"])
    assert types_of(tmp_path / "bf16.onnx") >= {onnx.TensorProto.BFLOAT16}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--precision", "fp8"), "Give --calibration DATA"),
        (("--precision", "fp8"), "--precision fp8-weights and --rounding nearest needs none"),
        (("--precision", "int8-weights"), "Give --calibration DATA"),
        (("--precision", "int8-weights"), "or .txt; --rounding nearest needs none"),
        (("--precision", "fp8-weights", "--rounding", "nearest", "--kv-cache"), "--calibration"),
        (("--precision", "fp8", "--base", "keep"), "Give --calibration DATA"),
        (("--precision", "fp8", "--max-kl", "0.1"), "Give --calibration DATA"),
        (("--precision", "fp16", "--max-kl", "0.1"), "a 16-bit precision"),
        (("--precision", "fp8", "--max-kl", "0.1", "--max-error", "0.1"), "2 budgets"),
        (
            ("--precision", "fp8", "--max-perplexity-ratio", "2", "--max-error-over-floor", "2"),
            "2 budgets. Give one of --max-kl and --max-error above 0, --max-perplexity-ratio and --max-error-over-floor above 1",
        ),
        (("--precision", "fp8", "--max-error", "0"), "search within a budget: 0. Give"),
        (("--precision", "fp8", "--max-perplexity-ratio", "1"), "perplexity ratio 1: "),
        (("--precision", "fp8", "--max-error-over-floor", "1"), "error over noise floor 1: "),
        (("--precision", "fp8", "--max-error-over-floor", "1.01"), "Give --calibration DATA"),
        (("--precision", "fp8", "--max-kl", "0.1", "--gpu", "abacus"), "abacus"),
        (("--precision", "fp8", "--calibration", "none.npz"), "none.npz"),
        (("--precision", "fp7"), "fp7"),
        (
            ("--precision", "fp16", "--kv-cache", "--no-pack"),
            "--kv-cache, --pack: only a precision",
        ),
        (("--precision", "bf16", "--epilogues"), "--epilogues: only a precision below"),
        (("--precision", "fp16", "--observer", "mse"), "--observer: only a precision below"),
        (
            ("--precision", "int8-weights", "--observer", "amax"),
            "observer 'amax' with format 'int8",
        ),
        (("--precision", "nvfp4", "--attention"), "attention with format 'nvfp4'"),
        (("--precision", "int4-weights", "--epilogues"), "epilogues with format 'int4-weights'"),
        (("--precision", "fp8", "--gpu", "l4"), "--gpu: only a search"),
        (("--precision", "fp16", "--tokens", "9"), "--tokens: only a search"),
        (("--precision", "fp8", "--window", "9"), "--window: only a calibration text"),
        (("--precision", "fp8", "--tokenizer", "t.json"), "--tokenizer: only a calibration text"),
        (("--precision", "fp8", "--base", "keep", "--io", "graph"), "--io: only a base other than"),
        (("--precision", "fp8", "--base", "keep", "--island", "bf16"), "--island: only a base"),
    ],
)
def test_misuse_is_one_error_and_leaves_nothing(graph, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    output = str(tmp_path / "out.onnx")
    done = CliRunner().invoke(app, ["quantize", str(graph), "-o", output, *arguments])
    refused = done.exception
    told = done.output if isinstance(refused, SystemExit) else str(refused)  # typer's own, or ours
    assert isinstance(refused, SystemExit | UsageError) and words in told
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_said_before_any_work(graph, data, tmp_path, monkeypatch):
    def work(*_, **__):
        raise AssertionError("typing began")

    monkeypatch.setattr("blockforge.export.precision.typed_file", work)

    def refused(*arguments):
        given = ["quantize", str(graph), "-o", str(tmp_path / "o.onnx"), "--precision", "fp8"]
        return CliRunner().invoke(app, [*given, *map(str, arguments)]).exception

    assert "Give --calibration DATA" in str(refused())
    one = refused("--calibration", data / "0.npz", "--max-kl", "0.1")
    assert "one set of calibration inputs" in str(one) and "2 or more with --calibration" in str(
        one
    )
    assert isinstance(refused("--calibration", data), AssertionError)


def test_weights_rounded_to_nearest_need_no_calibration(graph, tmp_path):
    words = ("--precision", "int8-weights", "--rounding", "nearest", "--json")
    given = ["quantize", str(graph), "-o", str(tmp_path / "o.onnx"), *words]
    assert json.loads(CliRunner().invoke(app, given).stdout)["quantization"]["num_quantized"] == 8


def test_the_worst_linears_are_named(graph, data, tmp_path):
    given = ["quantize", graph, "-o", tmp_path / "o.onnx", "--precision", "fp8", "--calibration"]
    given = [*map(str, given), str(data), "--rounding", "nearest"]
    rows = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)["quantization"]["linears"]
    errors = sorted(((r["error"], r["name"]) for r in rows if r["error"] is not None), reverse=True)
    assert len(errors) > 3
    text = " ".join(CliRunner().invoke(app, given, env={"COLUMNS": "300"}).stdout.split())
    named = ", ".join(f"{name} {error:.2%}" for error, name in errors[:3])
    assert f"errors of outputs on the calibration inputs: {named}" in text
    assert errors[3][1] not in text.split("calibration inputs:")[1]


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """x [b, 16] -> MatMul -> Log -> MatMul -> y, and inputs for which each value is finite or is not."""
    folder = tmp_path_factory.mktemp("linear")
    weights = {"w": np.eye(16, dtype=np.float32), "v": np.full((16, 16), 1e-7, np.float32)}
    nodes = [("MatMul", ["x", "w"], "h"), ("Log", ["h"], "l"), ("MatMul", ["l", "v"], "y")]
    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", 16]) for n in "xy"]
    made = onnx.helper.make_graph(
        [onnx.helper.make_node(op, i, [o], name=f"node_{o}") for op, i, o in nodes], "g", kinds[:1], kinds[1:],
        [onnx.numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(made, opset_imports=opset, ir_version=10), folder / "g.onnx")
    fine = np.random.default_rng(0).random((4, 16), np.float32) + 1
    for name, x in {"fine": fine, "nan": fine * np.nan, "zero": fine * 0}.items():
        np.savez(folder / f"{name}.npz", x=x)
    return folder


@pytest.mark.parametrize("words", [("fp16",), ("fp8",), ("fp8", "--base", "keep")])
def test_calibration_that_is_not_finite_is_refused(linear, tmp_path, words):
    given = ["--calibration", str(linear / "fine.npz"), "--calibration", str(linear / "nan.npz")]
    output = str(tmp_path / "o.onnx")
    done = CliRunner().invoke(
        app, ["quantize", str(linear / "g.onnx"), "-o", output, *given, "--precision", *words]
    )
    assert isinstance(done.exception, UsageError) and list(tmp_path.iterdir()) == []
    assert done.exception.asked == "calibration input 'x', feed 2 of 2"
    assert "64 NaN" in done.exception.found


def test_what_is_not_finite_in_fp32_is_told(linear, tmp_path):
    def said(name, *words):
        given = (linear / "g.onnx", "-o", tmp_path / "o.onnx", "--calibration", linear / name)
        arguments = ["quantize", *map(str, given), "--precision", "fp16", *words]
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
        assert done.exit_code == 0
        return done.stdout

    report = json.loads(said("zero.npz", "--json"))
    jsonschema.validate(report, schema_of("quantize"))
    report = report["typing"]
    assert [(r["value"], r["infinite"], r["size"]) for r in report["nonfinite"]] == [("l", 64, 64)]
    assert "l" not in {r["value"] for r in report["headroom"]}
    assert "l (node node_l, Log) is not finite in FP32: 64 infinite of 64" in said("zero.npz")
    fine = json.loads(said("fine.npz", "--json"))["typing"]
    assert fine["nonfinite"] == [] and fine["unproved"] == []
    assert fine["scaled"]["v"] < 0  # 1e-7 is subnormal in FP16: held larger, and taken back


def test_options_that_are_read_are_taken(graph, data, tmp_path):
    """Near misses of the above: what each of them is refused for is there."""

    def run(*arguments):
        some = ("-o", tmp_path / "low.onnx", "--calibration", data, "--rounding", "nearest")
        done = CliRunner().invoke(
            app, [str(a) for a in ("quantize", graph, *some, *arguments, "--json")]
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["quantization"]

    whole = run("--precision", "int8-weights", "--head", "--io", "graph", "--no-pack")
    assert whole["num_quantized"] == len(whole["linears"])
    made = run("--precision", "fp8", "--observer", "amax", "--only", "*q_proj*")
    assert {v["observer"] for v in made["calibration"]["values"].values()} == {"amax"}


def test_the_source_is_never_the_output(tmp_path):
    """By its name and by links of both kinds; and no folder is made for the output."""
    source = tmp_path / "g.onnx"
    source.write_bytes(b"any")
    (tmp_path / "soft.onnx").symlink_to(source)
    (tmp_path / "hard.onnx").hardlink_to(source)
    for name, words in (
        *((name, "the graph that is read") for name in ("g.onnx", "soft.onnx", "hard.onnx")),
        ("no/q.onnx", "No such file"),
    ):
        arguments = ["quantize", str(source), "-o", str(tmp_path / name), "--precision", "fp16"]
        refused = CliRunner().invoke(app, arguments).exception
        assert isinstance(refused, UsageError) and words in str(refused)
    assert source.read_bytes() == b"any" and not (tmp_path / "no").exists()
    np.savez(tmp_path / "data.npz", x=np.zeros(1))
    given = ["--calibration", str(tmp_path / "data.npz"), "-o", str(tmp_path / "data.npz")]
    refused = CliRunner().invoke(app, ["quantize", str(source), *given, "--precision", "fp16"])
    assert "it is another input" in str(refused.exception)


def test_what_is_written_computes_the_same(quantized, graph, data, tmp_path):
    """FP16 against FP32, both by ONNX Runtime on the CPU: this graph is far from the range's end."""
    import onnxruntime

    quantized(graph, "-o", tmp_path / "half.onnx", "--precision", "fp16", "--calibration", data)
    ids = np.load(data / "0.npz")["input_ids"]
    wide, half = (
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(
            None, {"input_ids": ids}
        )[0]
        for p in (graph, tmp_path / "half.onnx")
    )
    assert half.dtype == np.float32  # inputs and outputs keep their types
    spread = float(np.sqrt(np.mean((half - wide) ** 2)) / np.sqrt(np.mean(wide**2)))
    assert 1e-5 < spread < 2e-3
    assert torch.equal(torch.from_numpy(half).argmax(-1), torch.from_numpy(wide).argmax(-1))
