"""Language measures equal numpy's float64 formulas and hand-worked numbers."""

import math

import numpy as np
import pytest
import torch

from blockforge.validate import language as module
from blockforge.validate.language import (
    LanguageTally,
    greedy_agreement,
    kl_divergence,
    next_token_nll,
    perplexity,
    top_overlap,
)
from blockforge.validate.resample import mean_interval

EXACT = 1e-12


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sample(shape=(2, 9, 31)):
    rng = np.random.default_rng(3)
    logits = rng.standard_normal(shape) * 4
    return logits, rng.integers(0, shape[-1], shape[:2])


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_nll_equals_numpy(monkeypatch, rows):
    monkeypatch.setattr(module, "ROWS", rows)
    logits, ids = sample()
    expected = [
        [-math.log(softmax(logits[b, s])[ids[b, s + 1]]) for s in range(8)] for b in range(2)
    ]
    nll = next_token_nll(torch.from_numpy(logits), torch.from_numpy(ids))
    np.testing.assert_allclose(nll.numpy(), expected, rtol=EXACT)
    assert perplexity(nll) == pytest.approx(math.exp(np.mean(expected)), rel=EXACT)


def test_uniform_logits_have_the_perplexity_of_the_vocabulary():
    ids = torch.tensor([[0, 1, 2, 3]])
    assert perplexity(next_token_nll(torch.zeros(1, 4, 8), ids)) == pytest.approx(8, rel=EXACT)


def test_the_token_is_the_next_one():
    ids = torch.tensor([[0, 1, 2]])
    sure = torch.full((1, 3, 4), -50.0)
    sure[0, 0, 1] = sure[0, 1, 2] = 50.0  # position s predicts ids[s + 1]
    assert perplexity(next_token_nll(sure, ids)) == pytest.approx(1, rel=EXACT)
    assert perplexity(next_token_nll(sure.roll(1, dims=1), ids)) > 1e10


def test_large_fp16_logits_do_not_overflow_the_sum():
    logits = torch.full((1, 2, 16), 6e4, dtype=torch.float16)
    nll = next_token_nll(logits, torch.tensor([[0, 1]]))
    assert float(nll) == pytest.approx(math.log(16), rel=EXACT)


def test_broken_logits_have_no_perplexity():
    logits = torch.zeros(1, 3, 4)
    logits[0, 1, 0] = math.nan
    assert math.isnan(perplexity(next_token_nll(logits, torch.tensor([[0, 1, 2]]))))
    excluded = torch.zeros(1, 2, 4)
    excluded[0, 0, 3] = -math.inf
    assert perplexity(next_token_nll(excluded, torch.tensor([[0, 3]]))) == math.inf


def test_kl_equals_numpy_and_is_zero_for_itself():
    t, _ = sample()
    c = t + np.random.default_rng(5).standard_normal(t.shape) * 0.1
    p, q = softmax(t), softmax(c)
    kl = kl_divergence(torch.from_numpy(t), torch.from_numpy(c))
    np.testing.assert_allclose(kl.numpy(), (p * np.log(p / q)).sum(-1).reshape(-1), rtol=1e-9)
    assert kl_divergence(torch.from_numpy(t), torch.from_numpy(t)).abs().max() == 0
    shifted = kl_divergence(torch.from_numpy(t), torch.from_numpy(t + 3.0))
    assert shifted.abs().max() < 1e-13  # a constant changes no distribution


def test_kl_hand_worked_and_excluded_tokens():
    half = torch.log(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    quarter = torch.log(torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert float(kl_divergence(half, quarter)) == pytest.approx(expected, rel=EXACT)
    one = torch.tensor([[0.0, -math.inf]]).double()
    assert float(kl_divergence(one, half)) == pytest.approx(math.log(2), rel=EXACT)
    assert float(kl_divergence(half, one)) == math.inf
    assert math.isnan(float(kl_divergence(half, torch.tensor([[math.nan, 0.0]]))))


def test_greedy_agreement_counts_each_kind():
    truth = torch.tensor([[5.0, 1, 0], [5, 4.9, 0], [5, 1, 0], [5, 5, 0], [5, 1, 0]]).double()
    other = torch.tensor([[6.0, 1, 0], [4, 4.1, 0], [0, 1, 0], [4, 5, 0], [3, 3, 0]])
    found = greedy_agreement(truth, other, gap=0.5)
    assert (found.positions, found.same, found.tied, found.changed) == (5, 3, 1, 1)
    assert found.share == 0.6
    assert (found.worst_margin, found.worst_position) == (4.0, (2,))


def test_rows_that_are_not_finite_have_changed():
    truth = torch.eye(4).double().reshape(2, 2, 4)
    other = truth.clone()
    other[1, 0, 2] = math.nan
    found = greedy_agreement(truth, other, gap=1e9)
    assert (found.changed, found.worst_position, found.worst_margin) == (1, (1, 0), math.inf)


def test_tally_adds_up_cases():
    t, ids = sample()
    c = t + 0.05 * np.random.default_rng(8).standard_normal(t.shape)
    both, parts = LanguageTally(), LanguageTally()
    tensors = [torch.from_numpy(x) for x in (t, c, ids)]
    both.add(*tensors)
    for b in range(2):
        parts.add(*(x[b : b + 1] for x in tensors))
    one, two = both.score(), parts.score()
    assert one.perplexity == pytest.approx(two.perplexity, rel=EXACT)
    assert one.kl_divergence == pytest.approx(two.kl_divergence, rel=EXACT)
    assert one.agreement == two.agreement
    silent = LanguageTally()
    assert silent.score() is None
    silent.add(tensors[0], tensors[1], None)
    assert silent.score().perplexity is None


def test_top_overlap_counts_shared_tokens():
    truth = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3, 2]])
    assert top_overlap(truth, truth) == 1
    assert top_overlap(truth, -truth) == pytest.approx(2 / 5)  # the last five share tokens 3 and 4
    order = torch.tensor([[5.0, 6, 7, 8, 9, 4, 3, 2]])
    assert top_overlap(truth, order) == 1  # a set, not an order
    assert top_overlap(truth[:, :3], order[:, :3]) == 1  # a vocabulary below five


def test_interval_covers_the_mean_of_independent_draws_as_often_as_it_says():
    """95 % intervals of 200 samples miss the true mean about 5 % of the time (binomial: 2 % to 11 %)."""
    generator = torch.Generator().manual_seed(1)
    missed = 0
    for seed in range(200):
        low, high = mean_interval(torch.randn(400, generator=generator), seed=seed)
        missed += not low <= 0 <= high
    assert 4 <= missed <= 22


def test_interval_of_neighbours_that_err_together_is_wider():
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(50, generator=generator).repeat_interleave(8)
    low, high = mean_interval(noise)
    shuffled_low, shuffled_high = mean_interval(noise[torch.randperm(400, generator=generator)])
    assert high - low > 1.8 * (shuffled_high - shuffled_low)


def test_interval_of_one_value_and_of_a_broken_one():
    assert mean_interval(torch.tensor([3.0])) == (3.0, 3.0)
    assert all(map(math.isnan, mean_interval(torch.tensor([1.0, math.inf]))))


def test_ratio_of_perplexities_is_paired():
    """The same text on both sides: the ratio's interval knows nothing of how hard the text is."""
    logits, ids = sample((1, 65, 31))
    truth, tokens = torch.from_numpy(logits), torch.from_numpy(ids)
    tally = LanguageTally()
    tally.add(truth, truth * 1.01, tokens)
    score = tally.score()
    assert score is not None and score.ratio_interval is not None
    low, high = score.ratio_interval
    ratio = perplexity(next_token_nll(truth * 1.01, tokens)) / perplexity(
        next_token_nll(truth, tokens)
    )
    assert score.perplexity_ratio == pytest.approx(ratio, rel=1e-9)
    assert low < ratio < high and high - low < 0.05
