"""A checkpoint with outliers, whole: export, typing, packing, the manifest's words, the check of every weight, an engine."""

from dataclasses import dataclass

import pytest
import torch

from blockforge.conversion import typing_record
from blockforge.core.conversion import TypingRecord
from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target
from blockforge.export.export import export_variant
from blockforge.export.linears.packed_file import pack_file
from blockforge.export.precision import PrecisionOptions, typed_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import save_model
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.weights import unlike_weights

from .chains import CHAINS, model
from .decoders import H
from .runs import UNIT, relative, typed
from .test_migrate import HUGE, X

FEEDS = {"input_ids": torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))}
CHANNEL = 5
PLANTED = {  # tensor: (axis of the checkpoint's [out, in], factor)
    "layers.0.mlp.up_proj.weight": (0, 1e10),
    "layers.0.mlp.down_proj.weight": (1, 1e-10),
    "layers.1.input_layernorm.weight": (0, 1e7),
    **{f"layers.1.self_attn.{x}_proj.weight": (1, 1e-7) for x in "qkv"},
}


@dataclass(frozen=True)
class Planted:
    """The preset with one channel of some values far out; it computes what the preset does."""

    plain: object

    def __getattr__(self, name):
        return getattr(self.plain, name)

    def read(self, name, dtype=torch.float32):
        tensor = self.plain.read(name).clone()
        if name in PLANTED:
            axis, factor = PLANTED[name]
            tensor.select(axis, CHANNEL).mul_(factor)
        return tensor.to(dtype)


@dataclass(frozen=True)
class Made:
    checkpoint: object
    source: str
    typed: str
    packed: str
    record: TypingRecord
    parts: dict


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    checkpoint = Planted(preset_checkpoint("llama-tiny-untied"))
    folder = tmp_path_factory.mktemp("planted")
    source = export_variant(
        checkpoint, layer=None, precision=DType.FP32, io=DType.FP32, folder=folder / "fp32"
    ).path
    typed, packed = folder / "typed.onnx", folder / "packed.onnx"
    report = typed_file(source, typed, [FEEDS], PrecisionOptions(DType.FP16))
    return Made(checkpoint, source, typed, packed, typing_record(report), pack_file(typed, packed))


def test_the_numbers(made):
    truth = TypedEvaluator(made.source, exact=True).run(FEEDS).outputs["logits"]
    run = TypedEvaluator(made.packed).run(FEEDS)
    assert run.overflow == () and relative(run.outputs["logits"], truth) < 4 * UNIT[DType.FP16]
    assert made.record.islands == () and made.record.exponents == {}


def test_the_manifest_says_which_values_and_how_far(made):
    first, second = made.record.changes
    assert first.startswith("1 channel of 2 values with ") and "layers.0.mlp" in first
    assert "layers.1.input_layernorm" in second and "held times 2^-" in second
    assert set(made.record.by_channel) == set(PLANTED)
    assert TypingRecord.model_validate_json(made.record.model_dump_json()) == made.record


def test_every_weight_is_the_checkpoint_s_but_for_its_exponents(made):
    known = {"by_channel": made.record.by_channel}
    assert unlike_weights(made.checkpoint, made.typed, **known) == ()
    assert unlike_weights(made.checkpoint, made.packed, packed=made.parts, **known) == ()
    assert set(unlike_weights(made.checkpoint, made.typed)) == set(PLANTED)
    name = "layers.0.mlp.down_proj.weight"
    (row,) = made.record.by_channel[name]
    for wrong in ({"axis": 1 - row.axis}, {"exponents": {CHANNEL: row.exponents[CHANNEL] + 1}}):
        other = made.record.by_channel | {name: (row.model_copy(update=wrong),)}
        assert unlike_weights(made.checkpoint, made.typed, by_channel=other) == (name,)


def test_an_engine_has_the_kernels_that_it_has_without_outliers(tmp_path):
    chain = CHAINS["swiglu"]
    planted, plain = (kernels(model(chain, size), tmp_path / str(size)) for size in (HUGE, 1.0))
    assert planted == plain and plain


def kernels(proto, folder):
    """The types of the planned kernels' tensors, in order."""
    folder.mkdir()
    path = folder / "model.onnx"
    save_model(typed(proto, X)[0], path)
    profile = {"x": ShapeRange((1, 6, H), (2, 6, H), (4, 6, H))}
    target = Target.parse("tensorrt-rtx:sm89")
    record = compile_engine(CompileRequest(path, target, profile, folder))
    assert record.violations == ()
    listed = load_layers(folder / record.layers).kernels
    return [[t.dtype for t in (*k.inputs, *k.outputs)] for k in listed]
