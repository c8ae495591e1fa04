"""Single elements, seeds, the first other token and zeros: against numpy, by hand, and through a verdict."""

import math

import numpy as np
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.graph.evaluator import Underflow
from blockforge.validate.inputs import InputPlan, build_cases
from blockforge.validate.judge import Variant, Way, judge_variant
from blockforge.validate.language import greedy_agreement
from blockforge.validate.limits import Limits
from blockforge.validate.resample import ratio_interval
from blockforge.validate.seeds import seeds_records
from blockforge.validate.spread import CHUNK, measure
from blockforge.validate.ulps import ElementTally
from blockforge.validate.underflow import UnderflowTally

RANGE = ShapeRange((1, 1), (1, 24), (4, 48))
EDGES = [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def spacing(numbers, dtype):
    """The distance to the next larger magnitude, from numpy and from bits for bfloat16."""
    if dtype is DType.BF16:
        return np.ldexp(1.0, np.floor(np.log2(np.abs(numbers))).astype(int) - 7)
    kind = {DType.FP16: np.float16, DType.FP32: np.float32}[dtype]
    return np.spacing(np.abs(numbers.astype(kind))).astype(np.float64)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32])
def test_ulps_are_numpys(dtype):
    """Truths that the type can hold, errors of every size, more elements than one chunk."""
    random = np.random.default_rng(3)
    truth = torch.from_numpy(random.standard_normal(2 * CHUNK + 11)).to(dtype.torch).double()
    truth = truth.where(truth.abs() > 1e-3, 1.0)
    units = torch.from_numpy(2.0 ** random.uniform(-3, 12, len(truth)))
    actual = truth + units * torch.from_numpy(spacing(truth.numpy(), dtype))
    tally = ElementTally(dtype)
    tally.add("case", truth.reshape(1, -1), actual.reshape(1, -1))
    found = (actual - truth).abs().numpy() / spacing(truth.numpy(), dtype)
    counts, _ = np.histogram(found, [0, *EDGES, np.inf])
    assert list(tally.ulps.values()) == counts.tolist()
    (best, *_), order = tally.record("y", {}).worst, np.argsort(-(actual - truth).abs().numpy())
    assert best.index == (0, int(order[0])) and best.ulps == pytest.approx(found[order[0]])
    assert [w.index[1] for w in tally.record("y", {}).worst] == order[:8].tolist()


def test_the_worst_of_all_cases_first_and_what_is_no_number_before_them():
    tally = ElementTally(DType.FP16, worst=3)
    truth = torch.zeros(2, 4, dtype=torch.float64) + 1
    one, two = truth.clone(), truth.clone()
    one[0, 2], one[1, 3], two[1, 0], two[0, 1] = 1.5, 3.0, 1.25, math.nan
    tally.add("first", truth, one)
    tally.add("second", truth, two)
    worst = tally.record("y", {}).worst
    assert [(w.case, w.index) for w in worst] == [
        ("second", (0, 1)),
        ("first", (1, 3)),
        ("first", (0, 2)),
    ]
    assert math.isinf(worst[0].error) and worst[0].ulps is None
    assert worst[1].ulps == 2048 and sum(tally.ulps.values()) == 15


def test_numbers_below_the_normal_ones_are_not_counted_and_zero_is():
    tally = ElementTally(DType.FP16)
    truth = torch.tensor([0.0, 1e-5, 1.0], dtype=torch.float64)
    tally.add("case", truth, torch.tensor([0.0, 0.0, 1.0]))
    assert sum(tally.ulps.values()) == 2 and tally.ulps["0.5"] == 2
    assert tally.record("y", {}).worst[0].index == (1,)


def test_declared_infinities_are_no_errors():
    tally = ElementTally(DType.FP16)
    values = torch.tensor([-math.inf, 1.0], dtype=torch.float64)
    tally.add("case", values, values.half())
    assert tally.record("y", {}).worst == ()


def test_the_interval_over_seeds_covers_the_ratio_about_as_often_as_it_says():
    """16 seeds of 8 numbers each: a bootstrap of so few misses a little more than its 5 % (binomial: 2 % to 16 %)."""
    random = np.random.default_rng(5)
    missed = 0
    for seed in range(200):
        errors = (1.3 * random.standard_normal((16, 8))) ** 2
        floors = random.standard_normal((16, 8)) ** 2
        low, high = ratio_interval(errors.sum(1).tolist(), floors.sum(1).tolist(), seed=seed)
        missed += not low <= 1.3 <= high
    assert 4 <= missed <= 32


def test_seeds_that_agree_give_a_narrow_interval_and_broken_ones_none():
    low, high = ratio_interval([4.0] * 5, [1.0] * 5)
    assert low == high == 2.0
    wide = ratio_interval([1.0, 9.0, 4.0, 2.0], [1.0] * 4)
    assert wide[1] - wide[0] > 0.5
    for errors, floors in (([1.0, math.inf], [1.0, 1.0]), ([1.0, 1.0], [0.0, 1.0])):
        assert all(map(math.isnan, ratio_interval(errors, floors)))


def test_seeds_are_pooled_by_output():
    truth = torch.zeros(4, dtype=torch.float64)
    spreads = [{"y": measure(truth, truth + e)} for e in (1.0, 3.0)]
    floors = [{"y": measure(truth, truth + e)} for e in (1.0, 2.0)]
    (found,) = seeds_records(spreads, floors)
    assert (found.output, found.seeds) == ("y", 2)
    assert found.ratio == pytest.approx(math.sqrt(10 / 5))
    assert found.interval[0] >= 1.0 and found.interval[1] <= 1.5
    assert seeds_records(spreads[:1], floors[:1]) == ()


def test_several_seeds_are_several_cases_of_one_size(tiny):
    profile = {"input_ids": RANGE}
    one = build_cases(tiny.inputs, profile, InputPlan(), vocab_size=97)
    three = build_cases(tiny.inputs, profile, InputPlan(seeds=3), vocab_size=97)
    assert [c.name for c in one] == ["seeded opt", "seeded odd", "seeded smallest"]
    assert [c.name for c in three] == [
        *(c.name for c in one),
        "seeded opt, seed 1",
        "seeded opt, seed 2",
    ]
    assert [c.repeats for c in three] == [True, False, False, True, True]
    assert not any(c.repeats for c in one)
    ids = [c.feeds["input_ids"] for c in three if c.repeats]
    assert len({i.shape for i in ids}) == 1 and not torch.equal(ids[0], ids[1])
    tokens = torch.arange(80) % 97
    read = build_cases(tiny.inputs, profile, InputPlan(seeds=2), vocab_size=97, tokens=tokens)
    assert [c.name for c in read if c.repeats] == ["seeded opt", "seeded opt, seed 1"]
    with pytest.raises(ValueError, match="0 seeds"):
        InputPlan(seeds=0)


def test_the_first_other_token_is_the_first_in_reading_order():
    truth = torch.eye(4).double().repeat(2, 2, 1)[:, :6]  # [2, 6, 4]: row s is largest at s % 4
    truth[1] *= 3  # the later token lies further below
    other = truth.clone()
    other[0, 5] = torch.tensor([0.0, 0.0, 0.0, 5.0])
    other[1, 0] = torch.tensor([0.0, 9.0, 0.0, 0.0])
    first = greedy_agreement(truth, other, gap=0.0).first
    assert (first.position, first.expected, first.actual) == ((0, 5), 1, 3)
    assert first.margin == 1.0
    assert greedy_agreement(truth, truth.float(), gap=0.0).first is None
    tied = truth.clone()
    tied[0, 2] = 1.0  # all equal: no other token
    assert greedy_agreement(truth, tied, gap=0.0).first is None


def test_zeros_add_up_by_value_and_layer():
    tally = UnderflowTally()
    tally.add([Underflow("layers.3.act", "layers.3.mlp/SwiGLU", 5, 100)])
    tally.add(
        [
            Underflow("layers.3.act", "layers.3.mlp/SwiGLU", 15, 100),
            Underflow("val_7", "layers.13/Add", 1, 2),
            Underflow("logits", "lm_head/MatMul", 1, 1000),
            Underflow("layers.3.q", "n7", 2, 100),
        ]
    )
    assert [(u.value, u.count, u.elements) for u in tally.listed()] == [
        ("val_7", 1, 2),
        ("layers.3.act", 20, 200),
        ("layers.3.q", 2, 100),
        ("logits", 1, 1000),
    ]
    assert tally.by_layer() == {"layers.3": 22, "layers.13": 1, "": 1}


@pytest.fixture(scope="module")
def repeated(tiny):
    """A truth with four seeds beside the text."""
    cases = build_cases(
        tiny.inputs,
        {"input_ids": RANGE},
        InputPlan(window=40, seeds=4),
        vocab_size=97,
        tokens=torch.randint(97, (80,), generator=torch.Generator().manual_seed(2)),
    )
    return tiny.truth(cases=cases)


def judged(tiny, truth, runner, *, judged=True):
    variant = Variant(DType.FP16, None, tiny.inputs, tiny.outputs)
    (found,) = judge_variant(
        truth, variant, Limits(), ways=[Way("fake", lambda: runner, judged=judged)]
    )
    return found


def test_a_verdict_of_what_pytorch_computes_has_pytorchs_elements(tiny, repeated):
    """The candidate is the floor's own module: ratio 1 on every seed, one histogram, one departure."""
    found = judged(tiny, repeated, tiny.runner(tiny.load(torch.float16)))
    (elements,), (seeds,) = found.elements, found.seeds
    assert elements.dtype == "fp16" and elements.ulps == elements.floor_ulps
    normal = torch.finfo(torch.float16).smallest_normal
    values = [v for case in repeated.results.values() for v in case.values()]
    counted = sum(int((v.abs() >= normal).sum()) for v in values)
    assert sum(elements.ulps.values()) == counted
    assert (seeds.seeds, seeds.ratio) == (4, pytest.approx(1.0))
    assert seeds.interval == pytest.approx((1.0, 1.0))
    assert found.greedy == found.floor_greedy
    worst = max(found.outputs, key=lambda e: e.max_abs)
    assert (elements.worst[0].case, elements.worst[0].index) == (worst.case, worst.worst_index)


def test_a_fault_shows_in_seeds_elements_and_tokens(tiny, repeated):
    wrong = tiny.model(tiny.fault(swapped=True)).half().eval()
    found = judged(tiny, repeated, tiny.runner(wrong))
    assert found.seeds[0].interval[0] > 2
    assert found.elements[0].ulps["more"] > found.elements[0].floor_ulps["more"]
    at = found.greedy
    expected = repeated.results[at.case]["logits"][at.position]
    assert at.expected == int(expected.argmax()) and at.actual != at.expected
    assert at.margin == pytest.approx(float(expected.max() - expected[at.actual]))


def test_a_second_opinion_looks_at_no_elements(tiny, repeated):
    found = judged(tiny, repeated, tiny.runner(tiny.load(torch.float16)), judged=False)
    assert found.elements == () and found.seeds[0].seeds == 4
