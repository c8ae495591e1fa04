"""Every rule of a comparison fires on its fault and leaves its near miss alone."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.core.manifest import TensorRecord
from blockforge.validate.compare import Rules, compare
from blockforge.validate.runners import numpy_from_tensor, tensor_from_numpy
from blockforge.validate.spread import measure

RNG = np.random.default_rng(7)
LOGITS = RNG.standard_normal((4, 16, 256)).astype(np.float32) * 5
LOGITS[0, 0, :5] = 1e-7  # values near zero, where a relative error explodes
SLACK = 8.0  # the noise below is about six roundings to fp16


def record(name, array, dtype="fp32"):
    return TensorRecord(name=name, dtype=dtype, dims=tuple(array.shape))


def judged(truth, candidate, *, declared=None, rules=None):
    """Compare arrays; the floor is one rounding to fp16."""
    declared = declared or [
        record(n, a, "fp32" if a.dtype.kind == "f" else "int64") for n, a in truth.items()
    ]
    truth = {n: torch.from_numpy(a) for n, a in truth.items()}
    truth = {n: t.double() if t.is_floating_point() else t for n, t in truth.items()}
    floor = {
        n: measure(t, t.half()) for n, t in truth.items() if t.is_floating_point() and t.numel()
    }
    floor |= {n: measure(torch.ones(1), torch.ones(1)) for n in truth if n not in floor}
    candidate = {n: tensor_from_numpy(a) for n, a in candidate.items()}
    return compare(declared, truth, candidate, floor, rules or Rules(), case="c")


def broken(*args, **kwargs):
    return [finding.rule for finding in judged(*args, **kwargs).findings]


GREEDY = Rules(greedy=frozenset({"y"}), slack=SLACK)


def noisy():
    noise = 1 + 1e-3 * RNG.standard_normal(LOGITS.shape), 1e-3 * RNG.standard_normal(LOGITS.shape)
    return (LOGITS * noise[0] + noise[1]).astype(np.float32)


def with_other_token(margin):
    """One position prefers the runner-up: it was `margin` below, now 0.02 above."""
    truth = LOGITS.copy()
    row = truth[2, 3]
    best, second = np.argsort(row)[-1], np.argsort(row)[-2]
    row[second] = row[best] - margin
    changed = truth.copy()
    changed[2, 3, second] = row[best] + 0.02
    return truth, changed


def test_noise_of_a_few_roundings_breaks_no_rule():
    found = judged({"y": LOGITS}, {"y": noisy()}, rules=GREEDY)
    assert not found.findings
    (error,) = found.errors
    assert 3 < error.ratio < SLACK
    assert error.cosine > 0.999999 and error.case == "c"


def test_a_changed_token_is_found_though_the_mean_error_is_tiny():
    truth, changed = with_other_token(2.0)
    found = judged({"y": truth}, {"y": changed}, rules=GREEDY)
    assert [f.rule for f in found.findings] == ["greedy token"]
    assert "1 of 64 positions" in found.findings[0].detail and "[2, 3]" in found.findings[0].detail
    assert found.errors[0].worst_index[:2] == (2, 3)


def test_near_miss_a_token_that_changes_within_noise():
    truth, changed = with_other_token(1e-3)
    assert not broken({"y": truth}, {"y": changed}, rules=GREEDY)


def test_greedy_tokens_need_a_declared_vocabulary_and_slack():
    truth, changed = with_other_token(2.0)
    assert not broken({"y": truth}, {"y": changed}, rules=Rules(slack=SLACK))
    assert not broken({"y": truth}, {"y": changed}, rules=Rules(greedy=frozenset({"y"})))


MASK = np.zeros((4, 8), np.float32)
MASK[:, 4:], MASK[:, :2] = np.inf, -np.inf


def test_declared_infinities():
    declared = Rules(infinities=frozenset({"y"}))
    flipped = MASK.copy()
    flipped[1, 5] = -np.inf
    assert not broken({"y": MASK}, {"y": MASK.copy()}, rules=declared)
    assert broken({"y": MASK}, {"y": flipped}, rules=declared) == ["not finite"]
    assert "truth not finite" in broken({"y": MASK}, {"y": MASK.copy()})


def test_nan_on_both_sides_proves_nothing():
    nan = np.full((4, 8), np.nan, np.float32)
    assert "truth not finite" in broken({"y": nan}, {"y": nan.copy()})
    both = judged({"y": nan}, {"y": nan.copy()})
    assert math.isnan(both.errors[0].ratio)


def test_one_nan_in_a_million():
    truth = RNG.standard_normal((1000, 1000)).astype(np.float32)
    candidate = truth.copy()
    candidate[5, 6] = np.nan
    found = judged({"y": truth}, {"y": candidate})
    assert [f.rule for f in found.findings] == ["not finite"]
    assert found.errors[0].worst_index == (5, 6)
    assert found.errors[0].nonfinite == 1


def test_zeros_for_a_small_result():
    truth = (RNG.standard_normal((4, 8)) * 1e-4).astype(np.float32)
    found = judged({"y": truth}, {"y": np.zeros_like(truth)})
    assert [f.rule for f in found.findings] == ["all zero"]
    assert found.errors[0].ratio > 100
    assert not broken({"y": np.zeros_like(truth)}, {"y": np.zeros_like(truth)})


def test_integers_are_exact_but_for_ties():
    logits = np.array([[0, 1, 1, 5.0, 5.0001], [0.0] * 5], np.float32)
    truth = {"ids": np.array([3, 7]), "logits": logits}
    tied = {"ids": np.array([4, 7]), "logits": logits}
    ties = Rules(ties={"ids": "logits"}, slack=2.0)
    assert not broken(truth, tied, rules=ties)
    assert broken(truth, tied) == ["integers"]  # no ties declared
    assert broken(truth, tied, rules=Rules(ties={"ids": "logits"})) == [
        "integers"
    ]  # no slack: exact
    far = {"ids": np.array([2, 7]), "logits": logits}
    assert broken(truth, far, rules=ties) == ["integers"]
    outside = {"ids": np.array([3, 6]), "logits": logits}
    assert broken(truth, outside, rules=ties) == ["integers"]  # 6 and 7 index nothing


def test_integers_off_by_one():
    found = judged({"y": np.array([3, 7])}, {"y": np.array([4, 7])})
    assert [str(f) for f in found.findings] == [
        "y: integers: 1 of 2 differ, the first at [0]: 4, not 3"
    ]
    assert not broken({"y": np.array([3, 7])}, {"y": np.array([3, 7])})


def test_shapes_never_broadcast():
    one = np.ones((4, 1), np.float32)
    assert broken({"y": one}, {"y": np.ones((4, 8), np.float32)}) == ["shape"]
    assert broken({"y": one}, {"y": np.ones((4,), np.float32)}) == ["shape"]
    wrong = [TensorRecord(name="y", dtype="fp32", dims=("batch", 2))]
    assert broken({"y": one}, {"y": one}, declared=wrong) == ["shape"]
    right = [TensorRecord(name="y", dtype="fp32", dims=("batch", 1))]
    assert not broken({"y": one}, {"y": one}, declared=right)


def test_missing_and_extra_outputs():
    assert broken({"y": LOGITS, "z": LOGITS}, {"y": LOGITS}) == ["missing output"]
    assert broken({"y": LOGITS}, {"y": LOGITS, "z": LOGITS}) == ["extra output"]


def test_empty_outputs():
    empty = np.zeros((0, 8), np.float32)
    assert broken({"y": empty}, {"y": empty.copy()}) == ["empty"]


def test_dtypes_are_as_declared():
    values = RNG.standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    truth = {"y": values.astype(np.float32)}
    declared = [record("y", values, "bf16")]
    assert not broken(truth, {"y": values}, declared=declared)
    found = judged(truth, {"y": values.view(np.uint16)}, declared=declared)
    assert [str(f) for f in found.findings] == ["y: dtype: uint16, declared as bf16"]
    assert broken(truth, {"y": values.astype(np.float32)}, declared=declared) == ["dtype"]


def test_no_yardstick_is_no_pass():
    truth = {"y": torch.full((2, 2), 7e4).double()}
    floor = {"y": measure(truth["y"], truth["y"].half())}  # infinite in fp16
    declared = [TensorRecord(name="y", dtype="fp32", dims=(2, 2))]
    found = compare(declared, truth, {"y": truth["y"].float()}, floor, Rules())
    assert [f.rule for f in found.findings] == ["floor not finite"]
    with pytest.raises(UsageError, match="no noise floor"):
        compare(declared, truth, {"y": truth["y"].float()}, {}, Rules())
    with pytest.raises(UsageError, match="no truth"):
        compare(declared, {}, {"y": truth["y"].float()}, floor, Rules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64])
def test_numpy_and_back_keeps_bits_and_type(dtype):
    value = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(dtype)
    back = tensor_from_numpy(numpy_from_tensor(value))
    assert back.dtype == dtype and torch.equal(back.float(), value.float())
