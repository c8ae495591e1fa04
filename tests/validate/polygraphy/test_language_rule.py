"""What a golden case may lose as language, on made logits: the rule, its near misses, and its measures beside torch's."""

import math

import numpy as np
import pytest
import torch

from blockforge.validate.inputs import Case
from blockforge.validate.limits import Limits
from blockforge.validate.polygraphy.checks import faults, language_measures
from blockforge.validate.polygraphy.language_limits import language_limits
from blockforge.validate.reference import Truth

from .test_language_limits import verdict


def made(shape=(2, 17, 64)):
    """A truth of random logits on one case, the logits, and what adds normal noise to them."""
    rng = np.random.default_rng(11)
    expected = torch.from_numpy(rng.normal(size=shape) * 3)
    case = Case("seeded odd", {"input_ids": torch.zeros(shape[:2], dtype=torch.int64)})
    truth = Truth(
        load=None,
        outputs=(),
        cases=(case,),
        results={case.name: {"logits": expected}},
        layers={},
        vocabulary="logits",
        perplexity=None,
    )

    def noisy(size, seed=0):
        rng = np.random.default_rng(seed)
        return expected + size * torch.from_numpy(rng.normal(size=shape))

    return truth, expected, noisy


@pytest.mark.parametrize("shape", [(2, 17, 64), (1, 1, 64)])
def test_a_limit_for_a_text_is_moved_by_what_the_graph_loses_here(shape):
    """The graph loses five times as much here as on the text: its own numbers by other kernels pass, twice the noise fails."""
    truth, expected, noisy = made(shape)
    own = language_measures(expected.numpy(), noisy(0.2).numpy(), None)["max_kl"]
    text, limit = own / 5, own / 4
    found = language_limits(
        truth,
        truth.cases,
        Limits(max_kl_divergence=limit),
        lambda _case: noisy(0.2),
        verdict(kl_divergence=text),
    )
    (entry,) = found.values()
    assert limit < own < entry["max_kl"]
    assert entry["max_kl"] <= 3.1 * own  # one position: its own number is its deviation
    output = {"dtype": "fp64", "max_rms": None, "greedy_gap": None, "min_cosine": None}
    limits = {"y": output | {"language": found}}
    other_kernels = [(0.2, seed, True) for seed in range(1, 9)]
    for size, seed, right in (*other_kernels, (0.5, 1, False), (1.0, 2, False)):
        words = faults(limits, {"y": expected.numpy()}, {"y": noisy(size, seed).numpy()})["y"]
        assert (words == []) == right, (size, words)


def test_a_graph_that_missed_the_recipes_limit_misses_its_own():
    truth, expected, noisy = made()
    found = language_limits(
        truth,
        truth.cases,
        Limits(max_kl_divergence=0.02, min_token_agreement=0.9),
        lambda _case: noisy(0.2),
        verdict(kl_divergence=0.03, token_agreement=0.8),
    )
    (entry,) = found.values()
    own = language_measures(expected.numpy(), noisy(0.2).numpy(), None)
    assert own["max_kl"] > entry["max_kl"] and own["min_agreement"] < entry["min_agreement"]


def test_one_position_says_nothing_of_a_share():
    truth, _, noisy = made((1, 1, 64))
    limits = Limits(min_token_agreement=0.9)
    found = language_limits(truth, truth.cases, limits, lambda _case: noisy(0.2), None)
    assert [entry["min_agreement"] for entry in found.values()] == [None]


def test_another_reference_is_not_judged():
    truth, expected, noisy = made()
    limits = Limits(max_kl_divergence=9.0)
    found = language_limits(truth, truth.cases, limits, lambda _case: noisy(0.2), None)
    output = {"dtype": "fp64", "max_rms": None, "greedy_gap": None, "min_cosine": None}
    other = expected.numpy() + 1e-9
    words = faults({"y": output | {"language": found}}, {"y": other}, {"y": noisy(0.2).numpy()})
    assert "not one that this bundle was built with" in words["y"][0]


def test_the_measures_are_those_of_torch():
    _, expected, noisy = made()
    found, ids = noisy(0.3), torch.randint(64, (2, 17))
    measures = language_measures(expected.numpy(), found.numpy(), ids.numpy())
    kl = torch.nn.functional.kl_div(
        found.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="sum"
    )
    assert measures["max_kl"] == pytest.approx(float(kl) / 34, rel=1e-12)
    agree = (found.argmax(-1) == expected.argmax(-1)).double().mean()
    assert measures["min_agreement"] == float(agree)

    def nll(logits):
        rows = logits[:, :-1].reshape(-1, 64)
        return torch.nn.functional.cross_entropy(rows, ids[:, 1:].reshape(-1))

    ratio = math.exp(nll(found) - nll(expected))
    assert measures["max_perplexity_ratio"] == pytest.approx(ratio, rel=1e-12)
