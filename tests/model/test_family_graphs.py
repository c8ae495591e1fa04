"""The graph of every family: its operators, its numbers in ONNX Runtime, and that TensorRT-RTX builds it.

The export itself proves graph = module in exact arithmetic at several sizes; here another runtime computes it.
"""

import importlib.util

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.export.export import Exported, export_variant
from blockforge.graph.io import load_model
from blockforge.model.build import load_module, signature
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.presets import PRESETS
from blockforge.model.signature import draw_whole_numbers

FLOAT32 = (
    8 * 30 * 2**-24
)  # as test_decoder.py, for up to six layers, norms on both sides, and softcaps
TINY = [name for name in PRESETS if "-tiny" in name]
FAST = ("bert-tiny", "gemma-3-tiny", "deepseek-v3-tiny")
FAMILIES = [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in TINY]
# what each family's graph must hold, whatever else it does: operator -> how many (None: at least one)
EXPECTED = {
    "bert-tiny": {"LayerNormalization": 5, "Gelu": 2, "Attention": 2, "Tanh": 1},
    "gpt2-tiny": {"LayerNormalization": 5, "Gelu": 2, "Split": 2, "Attention": 2},
    "qwen3-tiny": {"RMSNormalization": 9, "RotaryEmbedding": 4},
    "palm-tiny": {"LayerNormalization": 3, "blockforge::SwiGLU": 2},
    "t5-tiny": {"RMSNormalization": 12, "Attention": 6, "Gelu": 4},
    "phi-3-tiny": {"Split": 4, "blockforge::SwiGLU": 2, "MatMul": 9},
    "gemma-2-tiny": {"RMSNormalization": 9, "Attention": 2, "Gelu": 2, "Tanh": 1},
    "gemma-3-tiny": {"RMSNormalization": 37, "Attention": 6, "Cos": 2, "Where": 1},
    "deepseek-v3-tiny": {"Attention": 2, "TopK": 3, "RotaryEmbedding": 4},
    "grok-1-tiny": {"Attention": 2, "TopK": 2, "Softmax": 2},
    "transformer-tiny": {"LayerNormalization": 10, "Attention": 6, "Relu": 4},
    "batchnorm-tiny": {"Attention": 2},
}


def feeds(inputs, sizes: dict[str, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {}
    for record in inputs:
        shape = tuple(sizes.get(dim, dim) for dim in record.dims)
        if record.below is None:
            drawn[record.name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            drawn[record.name] = draw_whole_numbers(record, shape, generator)
    return drawn


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, tmp_path_factory) -> tuple[str, Exported]:
    folder = tmp_path_factory.mktemp("graphs") / "fp32"
    checkpoint = preset_checkpoint(request.param)
    options = {"layer": None, "precision": DType.FP32, "io": DType.FP32}
    return request.param, export_variant(checkpoint, folder=folder, **options)


def test_operators(exported):
    name, graph = exported
    operators = graph.summary.operators
    for operator, count in EXPECTED.get(name, {"Attention": 2}).items():
        assert operators.get(operator) == count, operator
    assert graph.verified.worst < 1e-4


def test_attention_says_what_it_may(exported):
    """No mask beside is_causal; softcap and scale as attributes."""
    name, graph = exported
    config = PRESETS[name]
    for node in load_model(graph.path).graph:
        if node.op_type != "Attention":
            continue
        masked = len(node.inputs) > 3 and node.inputs[3] is not None
        assert not (masked and node.attributes.get_int("is_causal", 0))
        cap = node.attributes.get_float("softcap", 0.0)
        assert cap == (config.attention.softcap or 0.0)
        assert node.attributes.get_float("scale") == np.float32(config.attention.score_scale)


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 33, 20)], ids=str)
def test_onnx_runtime_computes_what_the_module_computes(exported, size):
    name, graph = exported
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(graph.path), options, providers=["CPUExecutionProvider"]
    )
    inputs, outputs = signature(PRESETS[name], None, DType.FP32)
    values = feeds(
        inputs, dict(zip(("batch", "sequence", "source"), size, strict=True)), torch.float32
    )
    result = load_module(preset_checkpoint(name), dtype=torch.float64)(*values.values())
    truth = result if isinstance(result, tuple) else (result,)
    found = session.run(None, {key: value.numpy() for key, value in values.items()})
    assert [o.name for o in session.get_outputs()] == [record.name for record in outputs]
    for actual, expected in zip(found, truth, strict=True):
        error = np.linalg.norm(actual - expected.numpy()) / np.linalg.norm(expected.numpy())
        assert error < FLOAT32


def test_stacked_experts_are_stored_as_their_product_reads_them(exported):
    """[experts, in, out] without a Transpose, like every other linear."""
    name, graph = exported
    model = load_model(graph.path)
    stacked = {k: v for k, v in model.graph.initializers.items() if ".experts." in k}
    assert bool(stacked) == (PRESETS[name].feed_forward.experts is not None)
    for weight, value in stacked.items():
        rows, columns = preset_checkpoint(name).shape(weight)[1:]
        assert isinstance(value, ir.Value)
        assert tuple(value.shape) == (8, columns, rows)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="no tensorrt_rtx")
def test_tensorrt_rtx_builds_it(exported, tmp_path):
    """In FP16, and a few families in FP32: one fused kernel for the attention where TensorRT has one.

    The legalised lines say where it has none.
    """
    from blockforge.engines.compile import CompileRequest, compile_engine
    from blockforge.engines.target import Target
    from blockforge.export.precision import PrecisionOptions, typed_file

    name, graph = exported
    inputs, _ = signature(PRESETS[name], None, DType.FP32)
    typed = tmp_path / "fp16.onnx"
    sizes = dict.fromkeys(("batch", "sequence", "source"), 8)
    typed_file(
        graph.path, typed, [feeds(inputs, sizes, torch.float32)], PrecisionOptions(DType.FP16)
    )
    shapes = [
        {r.name: tuple(size if isinstance(dim, str) else dim for dim in r.dims) for r in inputs}
        for size in (1, 8, 64)
    ]
    profile = {r.name: ShapeRange(*(shape[r.name] for shape in shapes)) for r in inputs}
    latent = PRESETS[name].attention.latent is not None
    for model in (typed, *([graph.path] if name in FAST else [])):
        target = Target.parse("tensorrt-rtx:sm89")
        engine = compile_engine(CompileRequest(model, target, profile, tmp_path))
        assert engine.kernels and engine.violations == ()
        spelled_out = [line for line in engine.legalized if "spelled out" in line]
        assert bool(spelled_out) == (latent or PRESETS[name].attention.softcap is not None)
