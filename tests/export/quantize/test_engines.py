"""What TensorRT-RTX makes of the files: really built, judged by the planned kernels."""

import pytest
from engine_graphs import HIDDEN, Chain, write
from quantize_graphs import numbers

from blockforge.core.errors import BlockforgeError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file

pytest.importorskip("tensorrt_rtx")
BLOCKS = 3
PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}


def built(folder, device, dtype="fp16", **options):
    """The engine's record and its kernels for a quantised chain of blocks."""
    source = write(Chain(dtype, blocks=BLOCKS).build(), folder, "source.onnx")
    x = numbers(2, 16, HIDDEN)
    feeds = [{"hidden_states": x.half() if dtype == "fp16" else x.bfloat16()}]
    options = QuantizeOptions(rounding="nearest", **options)
    quantize_file(source, folder / "q.onnx", feeds, options)
    target = Target.parse(f"tensorrt-rtx:{device}")
    request = CompileRequest(folder / "q.onnx", target, PROFILE, folder, num_blocks=BLOCKS)
    record = compile_engine(request)
    return record, load_layers(folder / record.layers).kernels


def products(kernels):
    """The matrix kernels of the linears, and the types they multiply."""
    return [k for k in kernels if k.is_matrix and any("_proj" in n for n in k.nodes)]


@pytest.mark.parametrize("device", ["sm89", "sm120"])
def test_fp8_plans_fp8_products_and_folds_the_quantise(device, tmp_path):
    """Ten kernels a block, as many as the FP16 graph has: no quantise runs alone."""
    record, kernels = built(tmp_path, device)
    linears = products(kernels)
    assert len(linears) == 4 * BLOCKS and {k.dtype for k in linears} == {"fp8_e4m3"}
    assert record.violations == ()
    assert record.kernels_per_block == 10
    quantise = [
        k for k in kernels if any("QuantizeLinear" in n for n in k.nodes) and not k.is_matrix
    ]
    assert all(any("quantized" not in n for n in k.nodes) for k in quantise)


def test_unpacked_linears_cost_kernels_on_sm120(tmp_path):
    record, _ = built(tmp_path, "sm120", pack=False)
    assert record.kernels_per_block > 10


@pytest.mark.parametrize(
    ("form", "stored"), [("fp8-weights", "fp8_e4m3"), ("int8-weights", "int8"), ("int4-weights", "int4")]
)  # fmt: skip
def test_weights_alone_build_and_stay_narrow(form, stored, tmp_path):
    record, kernels = built(tmp_path, "sm89", format=form)
    assert record.violations == ()
    held = {c.dtype for k in kernels for c in k.constants if c.is_matrix}
    assert stored in held


def test_fp4_weights_build_for_sm120_alone(tmp_path):
    record, kernels = built(tmp_path, "sm120", format="nvfp4")
    assert record.violations == ()
    assert any("fp4" in c.dtype for k in kernels for c in k.constants)


@pytest.mark.parametrize(("form", "device"), [("fp8", "sm86"), ("nvfp4", "sm89")])
def test_an_architecture_without_the_type_is_refused(form, device, tmp_path):
    with pytest.raises(BlockforgeError, match=r"(?i)fp8|fp4|float4"):
        built(tmp_path, device, format=form)
    assert not (tmp_path / "engines").exists()
