"""Spread: sums over chunks equal numpy's float64, hand-worked edges, and pooling equals one big tensor."""

import math

import numpy as np
import pytest
import torch

from blockforge.validate import spread as module
from blockforge.validate.spread import error_ratio, error_record, measure, pool, row_error

EXACT = (
    1e-12  # float64 sums of 1e5 terms: 1e5 * 2^-53 relative at the very worst, far less in practice
)


def sample(shape=(3, 5, 41), scale=1e-3):
    rng = np.random.default_rng(0)
    t = rng.standard_normal(shape)
    return t, (t + scale * rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_measures_equal_numpy_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    t, a = sample()
    e = np.abs(a.astype(np.float64) - t)
    s = measure(torch.from_numpy(t), torch.from_numpy(a))
    assert s.count == t.size
    assert s.max_abs == e.max()
    assert s.mean_abs == pytest.approx(e.mean(), rel=EXACT)
    assert s.rms == pytest.approx(np.sqrt((e**2).mean()), rel=EXACT)
    cosine = (t * a).sum() / np.linalg.norm(t) / np.linalg.norm(a.astype(np.float64))
    assert s.cosine == pytest.approx(cosine, rel=EXACT)
    assert s.worst_index == tuple(int(i) for i in np.unravel_index(e.argmax(), e.shape))
    assert s.worst_actual == a[s.worst_index]
    assert s.worst_expected == t[s.worst_index]


def test_hand_worked():
    s = measure(torch.tensor([3.0, 4.0]).double(), torch.tensor([3.0, 3.0]))
    assert (s.max_abs, s.mean_abs, s.rms) == (1.0, 0.5, math.sqrt(0.5))
    assert s.cosine == pytest.approx(21 / (5 * math.sqrt(18)), rel=EXACT)
    assert (s.worst_index, s.worst_actual, s.worst_expected) == ((1,), 3.0, 4.0)


def test_one_nan_makes_every_error_infinite_and_is_the_worst_element(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 10)
    t, a = sample((4, 6))
    a[2, 3] = np.nan
    s = measure(torch.from_numpy(t), torch.from_numpy(a))
    assert (s.nonfinite, s.worst_index) == (1, (2, 3))
    assert math.isnan(s.worst_actual) and math.isnan(s.cosine)
    assert s.max_abs == s.rms == s.mean_abs == math.inf


def test_a_result_of_nothing_but_nan_has_no_cosine():
    t = torch.ones(3).double()
    assert math.isnan(measure(t, t * math.nan).cosine)
    assert math.isnan(measure(torch.zeros(3).double(), t * math.nan).cosine)


def test_a_truth_that_is_not_finite_gives_nan():
    t = torch.tensor([1.0, math.nan]).double()
    s = measure(t, t)
    assert s.truth_nonfinite == 1
    assert all(map(math.isnan, (s.rms, s.max_abs, s.mean_abs, s.cosine)))


def test_declared_infinities_count_as_exact_only_with_equal_sign():
    inf = math.inf
    t = torch.tensor([inf, -inf, 1.0]).double()
    same = measure(t, t.float(), infinities=True)
    assert (same.nonfinite, same.truth_nonfinite, same.max_abs, same.count) == (0, 0, 0.0, 1)
    for wrong in ([inf, inf, 1.0], [inf, 5.0, 1.0], [inf, -inf, inf], [inf, math.nan, 1.0]):
        assert measure(t, torch.tensor(wrong), infinities=True).nonfinite == 1
    only = torch.tensor([inf, -inf]).double()
    assert measure(only, only, infinities=True).rms == 0.0
    assert measure(t, t.float()).truth_nonfinite == 2  # not declared


def test_pool_equals_one_tensor():
    t, a = sample((6, 10))
    whole = measure(torch.from_numpy(t), torch.from_numpy(a))
    parts = [
        measure(torch.from_numpy(t[i : i + 2]), torch.from_numpy(a[i : i + 2])) for i in (0, 2, 4)
    ]
    both = pool(parts)
    for name in ("rms", "mean_abs", "cosine", "max_abs", "worst_actual"):
        assert getattr(both, name) == pytest.approx(getattr(whole, name), rel=EXACT)
    broken = measure(torch.ones(2).double(), torch.tensor([1.0, math.nan]))
    assert pool([*parts, broken]).rms == math.inf
    silent = measure(torch.tensor([math.nan]).double(), torch.tensor([1.0]))
    assert math.isnan(pool([silent, *parts]).max_abs)


def test_ratio_and_a_floor_of_zero():
    t = torch.tensor([1.0, 2.0]).double()
    exact, off, twice = (
        measure(t, t + e) for e in (0, torch.tensor([0.1, 0]), torch.tensor([0.2, 0]))
    )
    broken = measure(t, torch.tensor([1.0, math.nan]))
    assert error_ratio(twice, off) == pytest.approx(2, rel=1e-12)
    assert error_ratio(exact, exact) == 0.0
    assert error_ratio(off, exact) == math.inf
    assert math.isnan(error_ratio(broken, off)) and math.isnan(error_ratio(off, broken))
    record = error_record("y", twice, off, case="c")
    assert (record.output, record.case, record.floor_max_abs) == ("y", "c", off.max_abs)
    assert record.ratio == error_ratio(twice, off)


def test_cosine_of_zeros():
    zero, one = torch.zeros(3).double(), torch.ones(3).double()
    assert measure(zero, zero).cosine == 1.0
    assert measure(one, zero).cosine == 0.0
    assert measure(zero, one).cosine == 0.0


def test_row_error_equals_numpy_and_no_row_hides_another():
    t, a = sample()
    e = (a.astype(np.float64) - t).reshape(-1, 41)
    rows = np.linalg.norm(e, axis=1) / np.linalg.norm(t.reshape(-1, 41), axis=1)
    expected = np.sqrt((rows**2).mean())
    assert row_error(torch.from_numpy(t), torch.from_numpy(a)) == pytest.approx(expected, rel=EXACT)
    t[0, 0] *= 1e6  # one giant row, exact: the others still count
    a = a.astype(np.float64)
    a[0, 0] = t[0, 0]
    rows[0] = 0
    expected = np.sqrt((rows**2).mean())
    assert row_error(torch.from_numpy(t), torch.from_numpy(a)) == pytest.approx(expected, rel=EXACT)


def test_row_error_of_zeros_and_of_what_is_not_finite():
    t = torch.tensor([[0.0, 0.0], [3.0, 4.0]]).double()
    assert row_error(t, t) == 0.0
    assert row_error(t, t + torch.tensor([[0.0, 0.0], [0.0, 5.0]])) == pytest.approx(math.sqrt(0.5))
    assert row_error(t, t + torch.tensor([[0.1, 0.0], [0.0, 0.0]])) == math.inf
    assert math.isnan(row_error(t, t * math.nan))
    assert row_error(t, torch.tensor([[0.0, 0.0], [3.0, math.inf]])) == math.inf
