"""The judgement of one value, on tensors whose noise is known."""

import pytest
import torch

from blockforge.validate.divergence.measure import local_error

UNIT = 2.0**-11  # fp16


@pytest.fixture
def exact():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 40, 64, generator=generator, dtype=torch.float64)


def judged(expected, actual, unit=UNIT):
    return local_error(expected, actual, [actual], unit=unit)


def test_rounding_to_the_type_is_within_the_noise(exact):
    error = judged(exact, exact.half())
    assert not error.diverged
    assert error.over < 0.3
    assert judged(exact, exact.bfloat16()).diverged  # eight times coarser than it says


def test_one_wrong_position_is_found_and_named(exact):
    actual = exact.clone()
    actual[2, 17] *= 1.02
    error = judged(exact, actual)
    assert (error.diverged, error.place, error.index) == (True, "row", (2, 17))
    actual[2, 17] = exact[2, 17] * 1.001  # two roundings: nothing
    assert not judged(exact, actual).diverged


def test_one_wrong_channel_is_found_and_named(exact):
    actual = exact.clone()
    actual[..., 5] += 0.02
    error = judged(exact, actual)
    assert (error.diverged, error.place, error.index) == (True, "channel", (5,))


def test_a_small_row_is_measured_by_its_own_size_and_by_its_neighbours(exact):
    """A row a thousand times smaller takes part in sums of the others: their rounding reaches it."""
    exact[0, 0] *= 1e-3
    actual = exact.clone()
    actual[0, 0] += UNIT / 16 * torch.sign(exact[0, 0])
    assert not judged(exact, actual).diverged
    actual[0, 0] += 0.02
    assert judged(exact, actual).index == (0, 0)


def test_numbers_that_are_not_finite_diverge(exact):
    actual = exact.clone()
    actual[1, 2, 3] = torch.inf
    error = judged(exact, actual)
    assert (error.diverged, error.wrong, error.index) == (True, 1, (1, 2, 3))


def test_masking_numbers_are_one_infinity_whatever_their_size():
    seen = torch.ones(9, 9).tril().bool()
    wide = torch.where(seen, 0.0, torch.finfo(torch.float32).min).double()
    narrow = torch.where(seen, 0.0, -torch.inf).half()
    assert not judged(wide, narrow).diverged
    assert not judged(torch.where(seen, 0.0, -65504.0).double(), narrow).diverged
    assert judged(wide, torch.where(seen, 0.0, -5.0).half()).diverged  # a number that does not mask
    shifted = torch.where(torch.ones(9, 9).tril(1).bool(), 0.0, -torch.inf).half()
    assert judged(wide, shifted).diverged


def test_whole_numbers_and_truth_values_are_exact_but_for_ties():
    one, two = torch.tensor([3, 1, 2]), torch.tensor([3, 1, 4])
    assert judged(one, two).diverged
    assert not judged(one, one).diverged
    tie = local_error(one, two, [two, one], unit=UNIT)  # rounding alone flips it
    assert not tie.diverged


def test_an_operator_that_makes_much_of_its_rounding_is_capped(exact):
    """Noise can excuse an error up to the cap only."""
    actual = exact + 0.2
    drawn = [actual, actual + 0.3, actual - 0.3]
    error = local_error(exact, actual, drawn, unit=UNIT)
    assert error.diverged
    assert error.capped
