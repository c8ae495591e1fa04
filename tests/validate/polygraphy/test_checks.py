"""The rules that travel with a bundle, and Polygraphy's own comparison beside them: where it is wrong, ours is right."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc
from polygraphy.logger import G_LOGGER

from blockforge.validate.polygraphy.checks import REFERENCE, Check, faults

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(4, 16, 256)) * 5
LIMIT = {"dtype": "fp32", "max_rms": 3e-3, "greedy_gap": None, "min_cosine": None, "language": {}}
COSINE = LIMIT | {"max_rms": None, "min_cosine": 0.99}
GREEDY = LIMIT | {"greedy_gap": 1e-2}
NORMAL = RNG.normal(size=LOGITS.shape)
NOISE = LOGITS + 1e-3 * RNG.normal(size=LOGITS.shape)


def f32(array):
    return np.asarray(array, np.float32)


def one_token(truth):
    """The truth with one position's runner-up just above its best."""
    changed = truth.copy()
    first, second = np.argsort(changed[2, 3])[::-1][:2]
    changed[2, 3, second] = changed[2, 3, first] + 0.02
    return f32(changed)


def runner_up(margin):
    """Truth and outputs of one row: the truth's second lies `margin` below its best, and the outputs prefer it."""
    truth = np.zeros((1, 1, 256))
    truth[0, 0, :2] = 5.0, 5.0 - margin
    swapped = truth.copy()
    swapped[0, 0, :2] = truth[0, 0, 1::-1]
    return {"y": truth}, {"y": f32(swapped)}


def with_nan(array):
    array = f32(array)
    array[1, 2, 3] = math.nan
    return array


SMALL = RNG.normal(size=(4, 8)) * 1e-4
Y = {"y": LIMIT}
# what -> (limits, truth, outputs, words of the fault; None: it is right)
VERDICTS = {
    "ordinary noise": (Y, {"y": LOGITS}, {"y": f32(NOISE)}, None),
    "too much noise": (Y, {"y": LOGITS}, {"y": f32(LOGITS + 5e-3)}, "rms error 0.005"),
    "one NaN": (Y, {"y": LOGITS}, {"y": with_nan(LOGITS)}, "1 elements are not finite"),
    "all zero": (Y, {"y": SMALL}, {"y": f32(SMALL * 0)}, "zero everywhere"),
    "small but right": (Y, {"y": SMALL}, {"y": f32(SMALL)}, None),
    "one token": ({"y": GREEDY}, {"y": LOGITS}, {"y": one_token(LOGITS)}, "1 greedy tokens"),
    "same tokens": ({"y": GREEDY}, {"y": LOGITS}, {"y": f32(NOISE)}, None),
    "a token by noise": ({"y": GREEDY}, *runner_up(9e-3), None),
    "a token by more": ({"y": GREEDY}, *runner_up(11e-3), "by up to 0.011; noise explains 0.01"),
    "missing": (Y | {"z": LIMIT}, {"y": LOGITS, "z": LOGITS}, {"y": f32(LOGITS)}, "missing"),
    "extra": (Y, {"y": LOGITS}, {"y": f32(LOGITS), "z": f32(LOGITS)}, "not declared"),
    "no outputs": (Y, {"y": LOGITS}, {}, "missing"),
    "empty": (Y, {"y": np.zeros((0, 8))}, {"y": f32(np.zeros((0, 8)))}, "shape (0, 8)"),
    "broadcast": (Y, {"y": np.ones((4, 8))}, {"y": f32(np.ones((4, 1)))}, "shape (4, 1)"),
    "other type": (Y, {"y": LOGITS}, {"y": LOGITS.astype("f2")}, "fp16, declared as fp32"),
    "bf16 as bits": (
        {"y": LIMIT | {"dtype": "bf16"}},
        {"y": LOGITS},
        {"y": LOGITS.astype(ml_dtypes.bfloat16).view(np.uint16)},
        "uint16, declared as bf16",
    ),
    "integers": (
        {"y": LIMIT | {"dtype": "int64"}},
        {"y": np.array([3, 7])},
        {"y": np.array([4, 7])},
        "1 integers differ",
    ),
    "cosine": ({"y": COSINE}, {"y": LOGITS}, {"y": f32(LOGITS + NORMAL * 0.6)}, None),
    "lower cosine": (
        {"y": COSINE},
        {"y": LOGITS},
        {"y": f32(LOGITS + NORMAL * 0.8)},
        "cosine 0.98",
    ),
    "cosine of nothing": ({"y": COSINE}, {"y": LOGITS * 0}, {"y": f32(LOGITS)}, "cosine 0"),
    "no limit": ({"y": LIMIT | {"max_rms": None}}, {"y": LOGITS}, {"y": f32(LOGITS)}, "no limit"),
}


@pytest.mark.parametrize(("limits", "truth", "outputs", "words"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(limits, truth, outputs, words):
    found = [word for faults_of in faults(limits, truth, outputs).values() for word in faults_of]
    if words is None:
        assert found == []
    else:
        assert any(words in word for word in found), found


def compared(truth, outputs, function):
    """Polygraphy's verdict on the two, by a compare function."""
    G_LOGGER.module_severity = {"": G_LOGGER.CRITICAL + 1}
    results = RunResults()
    results.append((REFERENCE, [IterationResult(truth, runner_name=REFERENCE)]))
    results.append(("ort", [IterationResult(outputs, runner_name="ort")]))
    return bool(Comparator.compare_accuracy(results, compare_func=function))


# Polygraphy 0.53's own comparison gives the other verdict on each of these.
WRONG = {
    "ordinary noise": SimpleCompareFunc(),
    "all zero": SimpleCompareFunc(atol=1e-2, rtol=1e-2),
    "one token": SimpleCompareFunc(atol=1, rtol=1, check_error_stat="mean"),
    "missing": SimpleCompareFunc(atol=1e-2, rtol=1e-2),
    "extra": SimpleCompareFunc(atol=1e-2, rtol=1e-2),
    "empty": SimpleCompareFunc(),
}


@pytest.mark.parametrize("name", WRONG)
def test_where_polygraphy_is_wrong_ours_is_right(name):
    limits, truth, outputs, words = VERDICTS[name]
    right = words is None
    assert compared(truth, outputs, Check(limits)) == right
    assert compared(truth, outputs, WRONG[name]) != right


def test_torch_tensors_and_who_is_who():
    truth, wide = {"y": LOGITS}, {"y": LIMIT | {"dtype": "bf16", "max_rms": 0.03}}
    bf16 = {"y": torch.from_numpy(LOGITS).to(torch.bfloat16)}
    assert faults(wide, truth, bf16)["y"] == []
    assert "declared as fp32" in faults(Y, truth, bf16)["y"][0]
    one = IterationResult(truth, runner_name="one")
    with pytest.raises(ValueError, match="neither is the reference"):
        Check(Y)(one, one)
    reference = IterationResult(truth, runner_name=REFERENCE)
    good, bad = (IterationResult({"y": f32(v)}, runner_name="ort") for v in (NOISE, LOGITS * 1.01))
    for order in ((reference, good), (good, reference)):
        assert Check(Y)(*order) == {"y": True}
    assert Check(Y)(bad, reference) == {"y": False}
