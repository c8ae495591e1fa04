"""Verdicts: true fp16 passes, each planted fault fails, and a second opinion is never a gate."""

from pathlib import Path

import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.errors import BuildError, UsageError
from blockforge.core.manifest import VerdictRecord
from blockforge.graph.evaluator import Overflow
from blockforge.validate.judge import Variant, Way, judge_variant, ways_of
from blockforge.validate.limits import Limits
from blockforge.validate.runners import Ran

# What the shipped recipes ask for. A true fp16 run is its own floor (ratio 1) or, with other sums,
# within a few per cent of it.
LIMITS = Limits(
    max_error_over_floor=2.0,
    max_layer_error_over_floor=2.0,
    max_perplexity_ratio=1.01,
    min_token_agreement=0.98,
    min_cosine=0.999,
    max_kl_divergence=1e-3,
    max_overflows=0,
)


@pytest.fixture(scope="module")
def truth(tiny):
    return tiny.truth()


def verdict(tiny, truth, runner, limits=LIMITS, *, judged=True) -> VerdictRecord:
    variant = Variant(DType.FP16, Path("model.onnx"), tiny.inputs, tiny.outputs)
    ways = [Way("fake", lambda: runner, judged)]
    (found,) = judge_variant(truth, variant, limits, ways=ways)
    return found


def half(tiny, **fault):
    return tiny.runner(tiny.model(tiny.fault(**fault)).to(torch.float16))


def test_true_fp16_passes_every_gate(tiny, truth):
    runner = half(tiny)
    found = verdict(tiny, truth, runner)
    assert runner.closed == 1
    assert found.passed and found.judged and not found.notes
    assert [g.name for g in found.gates] == [
        "broken comparison rules",
        "logits: error over floor",
        "layers.0: error over floor (worst layer)",
        "cosine",
        "perplexity over the truth's",
        "KL divergence",
        "greedy token agreement",
        "values that overflow",
    ]
    assert [e.ratio for e in found.outputs] == pytest.approx([1.0] * 4)
    assert found.layer_errors == pytest.approx(found.layer_floors)
    assert found.layer_names == ("layers.0", "layers.1", "layers.2")
    assert found.perplexity == pytest.approx(found.floor_perplexity)
    assert found.reference_perplexity == truth.perplexity
    assert [e.case for e in found.outputs] == [c.name for c in truth.cases]


FAULTS = {
    "gate and up exchanged": {"swapped": True},
    "eps 1e-2 for 1e-5": {"eps": 1e-2},
    "eps 1e-3 for 1e-5": {"eps": 1e-3},
    "mask looks one token ahead": {"mask_offset": 1},
    "one block a percent too strong": {"scale": 1.01},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planted_faults_fail_the_error_gate(tiny, truth, fault):
    found = verdict(tiny, truth, half(tiny, **fault), Limits(max_error_over_floor=2.0))
    assert not found.passed
    (gate,) = [g for g in found.gates if g.name == "logits: error over floor"]
    assert not gate.passed and gate.value > 2.0
    worst = {n: e / f for n, e, f in zip(
        found.layer_names, found.layer_errors, found.layer_floors, strict=True
    )}  # fmt: skip
    assert worst["layers.0"] == pytest.approx(1.0) and worst["layers.1"] > 1.5


def test_near_miss_an_eps_below_the_noise_passes(tiny, truth):
    assert verdict(tiny, truth, half(tiny, eps=1.1e-5)).passed


def test_one_nan_fails_every_gate_it_touches(tiny, truth):
    token = int(truth.cases[0].feeds["input_ids"][0, 30])
    found = verdict(tiny, truth, half(tiny, nan_token=token))
    failed = {g.name for g in found.gates if not g.passed}
    assert {"broken comparison rules", "logits: error over floor", "cosine"} <= failed
    assert {"perplexity over the truth's", "KL divergence"} <= failed
    assert any("not finite" in note for note in found.notes)
    assert VerdictRecord.model_validate_json(found.model_dump_json()) is not None


def test_one_nan_element_of_one_output(tiny, truth):
    runner = half(tiny)
    run = runner.run

    def poisoned(feeds, keep):
        ran = run(feeds, keep)
        if len(runner.asked) == 3:
            ran.outputs["logits"][1, 16, 96] = float("nan")
        return ran

    runner.run = poisoned
    found = verdict(tiny, truth, runner, Limits())
    assert not found.passed
    assert found.outputs[2].worst_index == (1, 16, 96) and found.outputs[2].nonfinite == 1
    assert "seeded odd: logits: not finite" in found.notes[0]


def test_an_output_that_is_missing_or_of_another_shape_fails_without_limits(tiny, truth):
    for change in (lambda t: {}, lambda t: {"logits": t[..., :1]}, lambda t: {"logits": t.half()}):
        runner = half(tiny)
        run = runner.run
        runner.run = lambda f, k, run=run, change=change: Ran(change(run(f, k).outputs["logits"]))
        found = verdict(tiny, truth, runner, Limits())
        assert not found.passed and found.gates[0].value == len(truth.cases)


def test_overflow_is_added_up_and_can_be_a_gate(tiny, truth):
    runner = half(tiny)
    runner.overflows = (Overflow("layers.1.mlp", "layers.1.mlp/MatMul", 3, 7e4, "range"),)
    found = verdict(tiny, truth, runner, Limits())
    assert found.overflow == (
        "layers.1.mlp: 12 elements beyond the range of its dtype (largest 7e+04, layers.1.mlp/MatMul)",
    )
    assert verdict(tiny, truth, runner, Limits(max_overflows=1)).passed
    assert not verdict(tiny, truth, runner, Limits(max_overflows=0)).passed


def test_the_largest_magnitudes_are_kept(tiny, truth):
    runner = half(tiny)
    runner.largest = {f"v{i}": float(i) for i in range(20)}
    assert verdict(tiny, truth, runner).peaks == {f"v{i}": float(i) for i in range(19, 11, -1)}


def test_a_second_opinion_has_no_gate(tiny, truth):
    found = verdict(tiny, truth, half(tiny, swapped=True), judged=False)
    assert found.passed and not found.judged and not found.gates
    assert found.outputs[0].ratio > 2.0
    assert "overflow" in found.notes[0]


def test_a_runner_that_cannot_run(tiny, truth):
    def make():
        raise BuildError("session", found="no kernel")

    variant = Variant(DType.FP16, Path("model.onnx"), tiny.inputs, tiny.outputs)
    with pytest.raises(BuildError):
        judge_variant(truth, variant, LIMITS, ways=[Way("fake", make)])
    (found,) = judge_variant(truth, variant, LIMITS, ways=[Way("fake", make, judged=False)])
    assert not found.judged and "no kernel" in found.notes[1]


def test_onnxruntime_is_a_gate_in_fp32_only(tiny):
    for precision, judged in ((DType.FP32, True), (DType.FP16, False), (DType.BF16, False)):
        variant = Variant(precision, Path("model.onnx"), tiny.inputs, tiny.outputs)
        assert {w.name: w.judged for w in ways_of(variant)} == {
            "typed-evaluator": True,
            "onnxruntime:cpu": judged,
        }


def test_a_runner_without_inner_values_is_not_judged_by_them(tiny, truth):
    runner = half(tiny)
    runner.inner, runner.values = False, frozenset()
    limits = Limits(max_layer_error_over_floor=2.0, max_overflows=0)
    found = verdict(tiny, truth, runner, limits)
    assert found.passed and [g.name for g in found.gates] == ["broken comparison rules"]


def test_layers_that_the_graph_does_not_name_fail_their_limit(tiny, truth):
    runner = half(tiny)
    runner.values = frozenset()
    assert not verdict(tiny, truth, runner, Limits(max_layer_error_over_floor=2.0)).passed


def test_limits_that_could_not_apply_are_refused(tiny, truth):
    silent = tiny.truth(cases=truth.cases[2:])  # no text
    assert verdict(tiny, silent, half(tiny), Limits(min_token_agreement=0.98)).passed
    with pytest.raises(UsageError, match="max_perplexity_ratio"):
        verdict(tiny, silent, half(tiny), Limits(max_perplexity_ratio=1.01))


def test_where_pytorch_overflows_in_fp16_the_yardstick_is_bf16(tiny):
    """A model whose activations pass 65504: PyTorch in fp16 gives no number to measure by, a wide candidate passes."""

    def load(dtype):
        model = tiny.model(tiny.fault(scale=1e7))
        return model.to(dtype).eval()

    truth = tiny.truth(load)
    floor = truth.floor(DType.FP16, DType.FP32)
    assert floor.dtype is DType.BF16 and floor.finite
    assert truth.floor(DType.BF16, DType.FP32) is floor  # computed once
    wide = tiny.runner(load(torch.float32), torch.float32)
    found = verdict(tiny, truth, wide, Limits(max_error_over_floor=1.0))
    assert found.passed and found.floor_dtype == "bf16"
    assert "PyTorch in fp16 is not finite" in found.notes[0]
    narrow = tiny.runner(load(torch.float16))
    assert not verdict(tiny, truth, narrow, Limits(max_error_over_floor=1e9)).passed


def test_a_finite_floor_is_the_variant_s_own(tiny, truth):
    assert truth.floor(DType.FP16, DType.FP32).dtype is DType.FP16
    assert verdict(tiny, truth, half(tiny)).floor_dtype == "fp16"
