"""The coverage benchmark: it counts, it sees a spoilt graph, and it says which tool is not installed."""

import importlib
import json
import sys
from pathlib import Path

import onnx
import pytest

from .graphs import graph, norm

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def coverage(monkeypatch):
    """The benchmark as a module; it lies beside the package, not in it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("fusion_coverage")
    for name in ("fusion_coverage", "fusion_tools"):
        sys.modules.pop(name, None)


@pytest.fixture
def corpus(tmp_path):
    """Two graphs with their truth."""
    onnx.save(norm(), tmp_path / "norm.onnx")
    gate = graph(
        """gate (float[b, s, 8] g, float[b, s, 8] u) => (float[b, s, 8] y) {
            sigmoid = Sigmoid(g)
            act = Mul(sigmoid, g)
            y = Mul(u, act)
        }"""
    )
    onnx.save(gate, tmp_path / "gate.onnx")
    zeros = dict.fromkeys(("rms", "ln", "glu", "rope", "attn", "act"), 0)
    kind = {"kind": "own", "path": "d", "opset": 20, "dtype": "fp32"}
    truth = {
        "norm.onnx": {**kind, **zeros, "rms": 1},
        "gate.onnx": {**kind, **zeros, "glu": 1, "act": 1},
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    return tmp_path


def test_ours_finds_everything(coverage, corpus, capsys):
    assert coverage.main([str(corpus), "--ours", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["blockforge"]
    assert score["recognised"] == {
        "rms": "1/1", "ln": ".", "glu": "1/1", "rope": ".", "attn": ".", "act": "1/1",
    }  # fmt: skip
    assert score["wrong"] == score["crashes"] == {}
    assert list(score["by_export"]) == ["dynamo 20 fp32"]


def test_a_spoilt_graph_and_a_crash_are_counted(coverage, corpus, capsys, monkeypatch):
    tools = importlib.import_module("fusion_tools")

    def spoil(path):
        model = onnx.load(path)
        if "gate" in path.name:
            raise ValueError("no gates here")
        model.graph.node[-1].op_type = "Add"
        return tools.Result(model, {"rms": 1, "ln": 0, "glu": 0, "rope": 0, "attn": 0, "act": 0})

    monkeypatch.setitem(tools.TOOLS, "spoiler", spoil)
    monkeypatch.setattr(coverage, "TOOLS", tools.TOOLS)
    coverage.main([str(corpus), "--tools", "spoiler", "--json"])
    score = json.loads(capsys.readouterr().out)["spoiler"]
    assert list(score["wrong"]) == ["norm.onnx"]
    assert score["crashes"] == {"gate.onnx": "ValueError: no gates here"}
    assert score["recognised"]["rms"] == "0/1"


def test_the_table_names_tools_that_are_missing(coverage, corpus, capsys, monkeypatch):
    monkeypatch.setattr(
        coverage, "missing", lambda name: "pip install it" if name == "onnxsim" else ""
    )
    coverage.main([str(corpus), "--tools", "blockforge,onnxsim"])
    assert "onnxsim: not installed (pip install it)" in capsys.readouterr().out
