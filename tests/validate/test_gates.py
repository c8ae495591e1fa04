"""Gates: each limit applies, none is a default, and no number that is not finite passes."""

import math

import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.validate.gates import Measured, gate, judge_gates
from blockforge.validate.limits import Limits
from blockforge.validate.spread import error_record, measure

TRUTH = torch.tensor([3.0, 4.0]).double()
FLOOR = measure(TRUTH, TRUTH + torch.tensor([0.0, 0.1]))
DOUBLE = measure(TRUTH, TRUTH + torch.tensor([0.0, 0.2]))


def measured(**other):
    values = {
        "findings": 0,
        "spreads": {"y": (DOUBLE, FLOOR)},
        "errors": [error_record("y", DOUBLE, FLOOR)],
        "layers": {"layers.0": (1e-3, 1e-3), "layers.1": (3e-3, 1e-3)},
        "perplexity": 24.6,
        "reference_perplexity": 24.0,
        "kl_divergence": 0.02,
        "token_agreement": 0.97,
        "overflows": 1,
    }
    return Measured(**(values | other))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("relation", ["<=", ">="])
@pytest.mark.parametrize("limit", [0.0, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(value, relation, limit):
    assert not gate("g", value, relation, limit).passed


def test_relations():
    assert gate("g", 2.0, "<=", 2.0).passed and not gate("g", 2.1, "<=", 2.0).passed
    assert gate("g", 0.9, ">=", 0.9).passed and not gate("g", 0.8, ">=", 0.9).passed


def test_without_limits_only_the_rules_are_a_gate():
    (only,) = judge_gates(measured(), Limits())
    assert (only.name, only.passed) == ("broken comparison rules", True)
    (only,) = judge_gates(measured(findings=1), Limits())
    assert not only.passed


# limit -> (a value that passes, one that fails) for the measurements above
EACH = {
    "max_error_over_floor": (2.001, 1.999),
    "max_layer_error_over_floor": (3.001, 2.999),
    "min_cosine": (0.999, 1.0),
    "max_perplexity_ratio": (1.0251, 1.0249),
    "max_kl_divergence": (0.02, 0.0199),
    "min_token_agreement": (0.97, 0.971),
    "max_overflows": (1, 0),
}


@pytest.mark.parametrize("name", EACH)
def test_each_limit_both_ways(name):
    for limit, passes in zip(EACH[name], (True, False), strict=True):
        rules, found = judge_gates(measured(), Limits(**{name: limit}))
        assert rules.passed and found.passed is passes, found


def test_the_worst_layer_and_layers_that_cannot_be_seen():
    limits = Limits(max_layer_error_over_floor=9.0)
    assert judge_gates(measured(), limits)[1].name.startswith("layers.1:")
    assert len(judge_gates(measured(layers=None), limits)) == 1  # a runner without inner values
    assert not judge_gates(measured(layers={}), limits)[1].passed  # none was found
    for error, floor, passes in ((math.nan, 1, False), (0.0, 0.0, True), (1e-9, 0.0, False)):
        layers = {"layers.0": (1.0, 1.0), "layers.1": (error, floor)}
        assert judge_gates(measured(layers=layers), limits)[1].passed is passes


def test_one_nan_cosine_hides_behind_no_other():
    broken = measure(TRUTH, torch.tensor([3.0, math.nan]))
    errors = [error_record("y", FLOOR, FLOOR), error_record("z", broken, FLOOR)]
    for order in (errors, errors[::-1]):
        assert not judge_gates(measured(errors=order), Limits(min_cosine=-1.0))[1].passed


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_error_over_floor": math.nan},
        {"max_perplexity_ratio": math.inf},
        {"max_kl_divergence": -0.1},
        {"min_cosine": 1.01},
        {"min_token_agreement": 1.5},
    ],
    ids=str,
)
def test_limits_that_no_number_could_meet_or_miss(wrong):
    with pytest.raises(UsageError, match="limit"):
        Limits(**wrong)
