"""Element measures against an oracle in Python's own fractions and sorting, and worked examples."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockforge.core.errors import UsageError
from blockforge.validate.measures import QUANTILES, ULP_EDGES, measure_elements

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def neighbour_gap(t, dtype):
    """The distance of the two numbers of `dtype` around t, found among all of them (16 bits or fewer)."""
    bits = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int64)
    carrier = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    numbers = bits.to(carrier).view(dtype).double()
    numbers = numbers[numbers.isfinite() & (numbers >= 0)].unique().tolist()
    above = next((i for i, n in enumerate(numbers) if n > abs(t)), len(numbers) - 1)
    return Fraction(numbers[above]) - Fraction(numbers[above - 1])


@pytest.mark.parametrize("dtype", TYPES[1:], ids=str)
def test_ulps_are_the_gap_between_neighbours(dtype):
    info = torch.finfo(dtype)
    truths = [1.0, 1.01, -3.7, info.smallest_normal, info.smallest_normal * 1.5, 0.999, info.max]
    for t in truths:
        off = float(neighbour_gap(t, dtype)) * 3
        found = measure_elements(
            torch.tensor([t], dtype=torch.float64),
            torch.tensor([t - math.copysign(off, t)], dtype=torch.float64),
            dtype=dtype,
        )
        assert found.max_ulps == pytest.approx(3, rel=1e-9), t
        assert found.ulps["4"] == 1 and sum(found.ulps.values()) == 1


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TYPES), st.integers(1, 60), st.integers(0, 2**31))
def test_against_plain_python(dtype, size, seed):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(size, generator=generator, dtype=torch.float64)
    truth[:: max(1, size // 3)] *= 0.0 if seed % 3 == 0 else 1.0
    actual = (truth * (1 + 1e-2 * torch.randn(size, generator=generator))).to(dtype)
    found = measure_elements(truth, actual, worst=5)

    t, a = truth.tolist(), actual.double().tolist()
    e = [abs(x - y) for x, y in zip(a, t, strict=True)]
    normal = [
        i for i in range(size) if t[i] == 0 or abs(t[i]) >= torch.finfo(dtype).smallest_normal
    ]
    relative = [0.0 if e[i] == 0 else e[i] / abs(t[i]) if t[i] else math.inf for i in normal]
    for values, quantiles in ((e, found.abs_error), (relative, found.rel_error)):
        for name, q in QUANTILES.items():
            covered = [v for v in values if v <= quantiles[name]]
            assert len(covered) >= q * len(values)
            below = [v for v in values if v < quantiles[name]]
            assert len(below) < q * len(values)
    noise = math.fsum(x * x for x in e)
    if noise:
        signal = math.fsum(x * x for x in t)
        wanted = 10 * math.log10(signal / noise) if signal else -math.inf
        assert found.snr_db == pytest.approx(wanted, abs=1e-9)
    order = sorted(range(size), key=lambda i: (-e[i], i))[:5]
    assert [w.index for w in found.worst] == [(i,) for i in order]
    assert [w.error for w in found.worst] == [e[i] for i in order]
    assert sum(found.ulps.values()) == len(normal) and found.denormal == size - len(normal)


def test_correct_rounding_is_half_an_ulp():
    truth = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for dtype in TYPES:
        found = measure_elements(truth, truth.to(dtype))
        assert found.max_ulps <= 0.5 and found.ulps["0.5"] == found.count - found.denormal


def test_one_wrong_element_is_found_where_it_is():
    truth = torch.ones(3, 70_000, 1, dtype=torch.float64)
    actual = truth.float()
    actual[2, 65_536, 0] += 0.25
    found = measure_elements(truth, actual, worst=2)
    assert found.worst[0].index == (2, 65_536, 0) and found.worst[0].error == 0.25
    assert found.worst[1].index == (0, 0, 0) and found.worst[1].error == 0
    assert found.abs_error == {"p50": 0, "p90": 0, "p99": 0, "p99.9": 0, "max": 0.25}
    assert found.worst[0].ulps == 0.25 * 2**23 and found.ulps["more"] == 1
    assert found.snr_db == pytest.approx(10 * math.log10(210_000 / 0.0625))


def test_numbers_that_are_not_finite_come_first():
    truth = torch.tensor([1.0, 2.0, math.inf, 4.0], dtype=torch.float64)
    actual = torch.tensor([math.nan, 2.0, math.inf, 5.0])
    found = measure_elements(truth, actual, worst=3)
    assert (found.count, found.nonfinite) == (2, 2)
    assert [w.index for w in found.worst] == [(0,), (2,), (3,)]
    assert found.abs_error["max"] == 1.0 and math.isnan(found.worst[0].ulps)
    silent = measure_elements(truth[2:3], actual[2:3])
    assert math.isnan(silent.snr_db) and math.isnan(silent.abs_error["p50"])


def test_denormals_have_absolute_errors_only():
    tiny = torch.finfo(torch.float16).smallest_normal
    truth = torch.tensor([tiny / 2, tiny / 4, tiny, 0.0], dtype=torch.float64)
    actual = torch.tensor([0.0, tiny / 4, tiny, 0.0], dtype=torch.float16)
    found = measure_elements(truth, actual)
    assert (found.denormal, found.flushed) == (2, 1)
    assert found.rel_error["max"] == 0 and found.max_ulps == 0
    assert found.abs_error["max"] == tiny / 2
    near = measure_elements(truth[2:], torch.tensor([0.0, 0.0], dtype=torch.float16))
    assert near.flushed == 0 and near.rel_error["max"] == 1  # a normal number lost is an error


def test_edges_and_json():
    assert ULP_EDGES[:3] == (0.5, 1, 2) and ULP_EDGES[-1] == 1024
    found = measure_elements(torch.zeros(2, dtype=torch.float64), torch.tensor([0.0, 1.0]))
    assert found.snr_db == -math.inf and found.rel_error["max"] == math.inf
    body = found.as_dict()
    assert body["worst"][0]["index"] == (1,) and body["dtype"] == "float32"
    for one, other in ((torch.ones(2), torch.ones(3)), (torch.ones(0), torch.ones(0))):
        with pytest.raises(UsageError):
            measure_elements(one, other)
    with pytest.raises(UsageError, match="float tensors"):
        measure_elements(torch.ones(2), torch.ones(2, dtype=torch.int64))
    assert np.isfinite(measure_elements(torch.ones(1), torch.ones(1)).max_ulps)
