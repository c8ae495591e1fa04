"""Folded epilogues in TensorRT-RTX: the same kernels as without, and every gate that reads a plan accepts them."""

import pytest
from engine_graphs import HIDDEN, Chain, write
from quantize_graphs import numbers

from blockforge.core.shapes import ShapeRange
from blockforge.engines.assertions import Demands, check_demands
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.preflight import preflight
from blockforge.engines.target import Target
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.io import load_model
from blockforge.inspection import inspect

pytest.importorskip("tensorrt_rtx")
BLOCKS = 3
PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}
SHAPES = tuple(f"hidden_states:{b}x{s}x{HIDDEN}" for b, s in ((1, 1), (2, 8), (4, 32)))
DEMANDS = Demands(10, ("norm", "attention", "swiglu"), {"gemm": "fp8"})


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """(plain, folded) files of one quantised chain."""
    folder = tmp_path_factory.mktemp("graphs")
    source = write(Chain("fp16", blocks=BLOCKS).build(), folder, "source.onnx")
    feeds = [{"hidden_states": numbers(2, 16, HIDDEN).half()}]
    for name, epilogues in (("plain", False), ("folded", True)):
        options = QuantizeOptions(rounding="nearest", epilogues=epilogues)
        quantize_file(source, folder / f"{name}.onnx", feeds, options)
    return folder / "plain.onnx", folder / "folded.onnx"


@pytest.mark.parametrize("device", ["sm89", "sm120"])
def test_folding_plans_the_same_kernels(device, graphs, tmp_path):
    """Kernel by kernel: kind, tactic, type and operands' types; ten a block, FP8 products, the quantise in norm and gate."""
    plans = []
    for path in graphs:
        target = Target.parse(f"tensorrt-rtx:{device}")
        request = CompileRequest(path, target, PROFILE, tmp_path / path.stem, num_blocks=BLOCKS)
        record = compile_engine(request)
        kernels = load_layers(tmp_path / path.stem / record.layers).kernels
        assert record.kernels_per_block == 10 and record.violations == ()
        assert check_demands(kernels, load_model(path), BLOCKS, DEMANDS) == ()
        plans.append(kernels)
    plain, folded = (
        [(k.type, k.tactic, k.dtype, *(tuple(t.dtype for t in ts) for ts in (k.inputs, k.constants, k.outputs))) for k in plan]
        for plan in plans
    )  # fmt: skip
    assert plain == folded
    (view,) = inspect(tmp_path / "folded" / record.layers)
    covering = {n.rpartition("/")[0] for k in view.kernels for n in k.nodes if "Quantize/" in n}
    block = f"layers.{view.block}"
    assert {f"{block}.post_attention_layernorm/AddRMSNormQuantize", f"{block}.mlp/SwiGLUPackedQuantize"} <= covering  # fmt: skip


def test_preflight_finds_what_compile_inlines(graphs):
    """A function with a QuantizeLinear that is called twice: the parser refuses it, legalisation takes care of it."""
    for device in ("sm89", "sm120"):
        target = Target.parse(f"tensorrt-rtx:{device}")
        plain, folded = (preflight(p, target, shapes=SHAPES) for p in graphs)
        assert plain.findings == () and folded.passed
        assert {(f.rule, f.legalized) for f in folded.findings} == {("function.quantize", True)}
    refused = preflight(graphs[1], Target.parse("tensorrt-rtx:sm86")).findings
    assert any("fp8" in f.rule for f in refused)
