"""FP8 caches in TensorRT-RTX: graph inputs and outputs in FP8, no more kernels than with the cache in 16 bits."""

import onnxruntime
import pytest
import torch
from builder_rig import Builder
from cached_decoders import Weights, decoder, past_name, present_name
from decoding import Decoding
from engine_graphs import write
from onnx import helper
from preflight_cases import graph

from blockforge.core.dtypes import DType
from blockforge.core.errors import BlockforgeError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target
from blockforge.export.precision import PrecisionOptions
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.graph.io import load_model
from blockforge.quantization import quantize_graph

pytest.importorskip("tensorrt_rtx")
WEIGHTS = Weights(layers=2)
SIZES = {"b": (1, 1, 2), "past": (1, 16, 40)}
EDGES = {n(i, p) for n in (past_name, present_name) for i in range(2) for p in ("key", "value")}


def profile(path):
    found = {}
    for value in load_model(path).graph.inputs:
        dims = [d if isinstance(d, int) else str(d.value) for d in value.shape]
        sizes = [SIZES.get(d, (d, d, d)) for d in dims]
        found[value.name] = ShapeRange(*(tuple(s[k] for s in sizes) for k in range(3)))
    return found


def built(path, folder, device):
    target = Target.parse(f"tensorrt-rtx:{device}")
    record = compile_engine(CompileRequest(path, target, profile(path), folder, num_blocks=2))
    return record, load_layers(folder / record.layers).kernels


@pytest.fixture(scope="module", params=["scatter", "concat", "attention"])
def graphs(request, tmp_path_factory):
    """The FP8 decoder with its cache in FP16, and in FP8."""
    folder = tmp_path_factory.mktemp(request.param)
    source = write(decoder(request.param, WEIGHTS), folder, "fp32.onnx")
    feeds = Decoding(source, request.param, 2, torch.float32, steps=9).feeds[2::3]
    for name, kv_cache in (("wide", False), ("fp8", True)):
        quantize_graph(
            source, folder / f"{name}.onnx", feeds, typing=PrecisionOptions(DType.FP16, io="graph"),
            quantization=QuantizeOptions(rounding="nearest", kv_cache=kv_cache, attention=kv_cache and request.param == "attention"),
        )  # fmt: skip
    return folder / "wide.onnx", folder / "fp8.onnx"


def test_an_fp8_cache_costs_no_kernel(graphs, tmp_path):
    """Quantise, dequantise and write are the kernels that wrote FP16 before; both architectures plan alike."""
    sixteen, eight = graphs
    wide, _ = built(sixteen, tmp_path / "wide", "sm89")
    record, kernels = built(eight, tmp_path / "fp8", "sm89")
    assert record.kernels_per_block <= wide.kernels_per_block and record.violations == ()
    newer, _ = built(eight, tmp_path / "newer", "sm120")
    assert newer.kernels_per_block == record.kernels_per_block and newer.violations == ()
    # Whatever its operands come from: 1.7.1 has no fused attention in FP8.
    assert {k.dtype for k in kernels if "mha" in k.name} == {"fp16"}
    touched = {t.name: t.dtype for k in kernels for t in (*k.inputs, *k.outputs) if t.name in EDGES}
    assert touched == dict.fromkeys(EDGES, "fp8_e4m3")
    assert {k.dtype for k in kernels if k.is_matrix and any("_proj" in n for n in k.nodes)} == {"fp8_e4m3"}  # fmt: skip


def test_an_architecture_without_fp8_is_refused(graphs, tmp_path):
    with pytest.raises(BlockforgeError, match=r"fp8_e4m3.*sm89"):
        built(graphs[1], tmp_path, "sm86")


def test_concat_of_codes_builds_and_is_no_onnx(tmp_path):
    """Why Concat keeps the graph's type: TensorRT-RTX joins codes, ONNX's own operator and ONNX Runtime do not."""
    edge = {"a": ("fp8", ["b", 2, "p", 16]), "k": ("fp8", ["b", 2, 1, 16])}
    body = [helper.make_node("Concat", ["a", "k"], ["c"], axis=2, name="n")]
    serialised = graph(body, edge, {"c": ("fp8", ["b", 2, "t", 16])})
    builder = Builder()
    assert builder.build(serialised, "SM89").built
    builder.close()
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph, match="Concat"):
        onnxruntime.InferenceSession(serialised, providers=["CPUExecutionProvider"])
