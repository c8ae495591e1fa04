"""A real export judged by real runners: right graphs pass, and a fault planted in the file is found at its layer."""

import dataclasses
import shutil

import numpy as np
import onnx_ir as ir
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.export.export import export_variant
from blockforge.graph.io import load_model, save_model
from blockforge.graph.spec import summarise
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.golden import read_golden, write_golden
from blockforge.validate.inputs import InputPlan, shipped_text
from blockforge.validate.judge import Variant, judge_variant, truth_for
from blockforge.validate.limits import Limits

LIMITS = Limits(
    max_error_over_floor=2.0,
    max_layer_error_over_floor=2.0,
    max_perplexity_ratio=1.01,
    min_token_agreement=0.97,
    max_overflows=0,
)
PROFILE = {"input_ids": ShapeRange((1, 1), (1, 32), (4, 128))}


class WithWords:
    """The tiny preset, with a tokenizer that knows the shipped text's commonest words."""

    def __init__(self):
        self._inner = preset_checkpoint("llama-tiny", seed=1)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def tokenizer(self):
        words = pre_tokenizers.Whitespace().pre_tokenize_str(shipped_text())
        count = {}
        for word, _ in words:
            count[word] = count.get(word, 0) + 1
        common = sorted(count, key=lambda w: (-count[w], w))[: self.config.vocab_size - 1]
        vocabulary = {"<other>": 0} | {w: i + 1 for i, w in enumerate(common)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<other>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        return tokenizer


@pytest.fixture(scope="module")
def checkpoint():
    return WithWords()


@pytest.fixture(scope="module")
def truth(checkpoint):
    plan = InputPlan(text_tokens=200, window=128)
    return truth_for(checkpoint, layer=None, profile=PROFILE, plan=plan)


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """Precision -> Variant of the decoder."""
    found = {}
    for precision in (DType.FP32, DType.FP16):
        folder = tmp_path_factory.mktemp(precision.value)
        done = export_variant(
            checkpoint, layer=None, precision=precision, io=DType.FP32, folder=folder
        )
        found[precision] = variant_of(precision, done.path)
    return found


def variant_of(precision, path):
    summary = summarise(load_model(path))
    return Variant(precision, path, summary.inputs, summary.outputs)


def test_the_cases_are_text_and_seeds(truth):
    assert [c.name for c in truth.cases] == [
        "text tokens 0-99", "text tokens 100-199", "seeded odd", "seeded smallest",
    ]  # fmt: skip
    assert list(truth.layers) == ["layers.0", "layers.1"]
    assert truth.perplexity > 1


def test_fp32_passes_with_both_runners(truth, exported):
    typed, session = judge_variant(truth, exported[DType.FP32], LIMITS)
    assert (typed.runner, session.runner) == ("typed-evaluator", "onnxruntime:cpu")
    assert typed.passed and typed.judged, typed.gates
    assert session.passed and session.judged, session.gates
    assert typed.layer_names == ("layers.0", "layers.1") and session.layer_names == ()
    assert len(typed.peaks) == 8
    assert typed.perplexity == pytest.approx(truth.perplexity, rel=1e-5)


def test_fp16_passes_and_onnxruntime_is_a_second_opinion(truth, exported):
    typed, session = judge_variant(truth, exported[DType.FP16], LIMITS)
    assert typed.passed and typed.judged, typed.gates
    assert not session.judged and not session.gates and session.outputs
    # fp16 keeps 11 bits, fp32 24: the floors lie about 2^13 apart
    fine, coarse = (
        truth.floor(p, DType.FP32).pooled("logits").rms for p in (DType.FP32, DType.FP16)
    )
    assert 2**11 < coarse / fine < 2**15


def test_the_floor_is_not_won_by_a_graph_of_another_precision(truth, exported):
    """An fp16 graph that claims to be fp32 fails by orders of magnitude."""
    claim = dataclasses.replace(exported[DType.FP16], precision=DType.FP32)
    assert not judge_variant(truth, claim, LIMITS)[0].passed


def exchange_gate_and_up(model):
    node = named(model, "layers.1.mlp/SwiGLU")
    gate, up = node.inputs
    node.replace_input_with(0, up)
    node.replace_input_with(1, gate)


def look_ahead(model):
    named(model, "layers.1.self_attn/Attention").attributes["is_causal"] = ir.AttrInt64(
        "is_causal", 0
    )


def larger_epsilon(model):
    node = named(model, "layers.1.input_layernorm/RMSNormalization")
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-2)


def forget_the_residual(model):
    node = named(model, "layers.1/Add_1")
    node.replace_input_with(0, node.inputs[1])


def half_scale(model):
    node = named(model, "layers.1.self_attn/Attention")
    node.attributes["scale"] = ir.AttrFloat32("scale", 0.125)


FAULTS = [exchange_gate_and_up, look_ahead, larger_epsilon, forget_the_residual, half_scale]


def copy_of(model, folder):
    return shutil.copytree(model.parent, folder, dirs_exist_ok=True) / model.name


def named(model, name):
    (node,) = [n for n in model.graph if n.name == name]
    return node


@pytest.mark.parametrize("precision", [DType.FP32, DType.FP16], ids=lambda p: p.value)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_in_the_file_fails_at_its_layer(truth, exported, tmp_path, precision, fault):
    path = copy_of(exported[precision].model, tmp_path)
    model = load_model(path)
    fault(model)
    save_model(model, path)
    limits = Limits(max_error_over_floor=2.0)
    typed, _ = judge_variant(truth, variant_of(precision, path), limits)
    assert not typed.passed
    first, second = (e / f for e, f in zip(typed.layer_errors, typed.layer_floors, strict=True))
    assert first < 2.0 < second, (first, second)


def test_one_nan_in_the_weights(truth, exported, tmp_path):
    path = copy_of(exported[DType.FP16].model, tmp_path)
    name = "layers.1.mlp.down_proj.weight"
    weight = load_model(path).graph.initializers[name].const_value
    with (tmp_path / weight.location).open("r+b") as data:
        data.seek(weight.offset + 2 * 77)
        data.write(np.float16(np.nan).tobytes())
    typed, second = judge_variant(truth, variant_of(DType.FP16, path), LIMITS)
    assert not typed.passed and typed.outputs[0].nonfinite > 0
    assert any("not finite" in note for note in typed.notes)
    assert any("not finite" in note for note in second.notes)


def test_one_block(checkpoint, tmp_path):
    profile = {"hidden_states": ShapeRange((1, 1, 64), (1, 32, 64), (4, 128, 64))}
    truth = truth_for(checkpoint, layer=1, profile=profile, plan=InputPlan(seeds=6))
    assert [c.name for c in truth.cases][:5] == [
        "hidden states of the text", "seeded opt", "seeded odd", "seeded smallest",
        "seeded opt, seed 1",
    ]  # fmt: skip
    done = export_variant(
        checkpoint, layer=1, precision=DType.FP16, io=DType.FP16, folder=tmp_path / "fp16"
    )
    limits = Limits(max_error_over_floor=2.0, max_layer_error_over_floor=2.0, min_cosine=0.999)
    typed, session = judge_variant(truth, variant_of(DType.FP16, done.path), limits)
    assert typed.passed, typed.gates
    assert session.passed
    assert typed.layer_names == ("layers.1",)
    assert typed.perplexity is None and typed.token_agreement is None and typed.greedy is None
    (seeds,) = typed.seeds
    assert seeds.seeds == 6 and seeds.interval[0] <= seeds.ratio <= seeds.interval[1]
    assert 0.5 < seeds.interval[0] < seeds.interval[1] < 2
    (elements,) = typed.elements
    assert elements.dtype == "fp16" and sum(elements.ulps.values()) > 10_000
    with pytest.raises(UsageError, match="min_token_agreement"):
        judge_variant(truth, variant_of(DType.FP16, done.path), Limits(min_token_agreement=0.9))


def test_golden_of_a_real_model(truth, tmp_path):
    path = tmp_path / "golden.safetensors"
    write_golden(path, truth)
    assert {c.name for c in read_golden(path)} == {c.name for c in truth.cases}
