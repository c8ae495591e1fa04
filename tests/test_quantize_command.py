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
        (("--precision", "fp8"), "no calibration feeds"),
        (("--precision", "fp16", "--max-kl", "0.1"), "a 16-bit precision"),
        (("--precision", "fp8", "--max-kl", "0.1", "--max-error", "0.1"), "two budgets"),
        (("--precision", "fp8", "--max-kl", "0.1", "--gpu", "abacus"), "abacus"),
        (("--precision", "fp8", "--calibration", "none.npz"), "none.npz"),
        (("--precision", "fp7"), "fp7"),
        (("--precision", "fp16", "--kv-cache", "--no-pack"), "--kv-cache, --pack, which only"),
        (("--precision", "bf16", "--epilogues"), "--epilogues, which only"),
        (("--precision", "fp16", "--observer", "mse"), "--observer, which only"),
    ],
)
def test_misuse_is_one_error_and_leaves_nothing(blockforge, graph, tmp_path, arguments, words):
    done = blockforge("quantize", graph, "-o", tmp_path / "out.onnx", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


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
