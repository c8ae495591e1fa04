"""Scales against plain formulas and a search that shares no code with ours; and what has no scale."""

import ml_dtypes
import numpy as np
import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.export.calibration.observers import OBSERVERS, Grid, observe
from blockforge.export.quantize.grids import E4M3, INT8


def outliers(seed=0):
    """Normal numbers, one in a thousand a thousand times larger."""
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(seed))
    x[3, 5] = 900.0
    return x


def test_amax_is_the_largest_magnitude_over_all_tensors():
    x = [torch.tensor([[1.0, -3.5]]), torch.tensor([[0.5, 2.0]])]
    found = observe("x", x, E4M3, "amax")
    assert (found.amax, found.scale) == (3.5, float(np.float32(3.5 / 448)))
    assert observe("x", x, INT8, "amax").scale == float(np.float32(3.5 / 127))


def test_percentile_ignores_the_rarest():
    x = outliers()
    found = observe("x", [x], E4M3, "percentile")
    expected = np.sort(x.abs().numpy().reshape(-1))[round(0.9999 * x.numel()) - 1] / 448
    assert found.scale == pytest.approx(expected, rel=1e-6) and found.amax == 900.0


def error_of(x, scale, weight):
    codes = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return ((x - codes * scale) ** 2 * weight).sum()


def test_mse_is_no_worse_than_any_scale_of_a_finer_search():
    """Of 200 scales over the same three octaves none beats the chosen one by more than its own spacing explains."""
    x = outliers()[:, :8]
    weight = torch.arange(1.0, 9.0)
    found = observe("x", [x], E4M3, "mse", weight)
    wide, importance = x.double().numpy(), weight.double().numpy()
    tried = found.amax / 448 * 2.0 ** np.linspace(-2, 0.875, 200)
    best = min(error_of(wide, s, importance) for s in tried)
    amax = error_of(wide, found.amax / 448, importance)
    chosen = error_of(wide, found.scale, importance)
    assert chosen <= amax * (1 + 1e-6) and chosen <= 1.1 * best  # ours sums in fp32


def test_the_weight_decides_which_column_counts():
    """A column that nothing reads may saturate."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
    x[:, 1] *= 7.9
    small = observe("x", [x], INT8, "mse", torch.tensor([1.0, 0.0])).scale
    assert small < observe("x", [x], INT8, "mse", torch.tensor([1.0, 1.0])).scale


@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_constant_tensor_has_a_scale(observer):
    found = observe("x", [torch.full((4, 8), 0.1)], E4M3, observer)
    code = float(E4M3.round(torch.tensor(0.1 / found.scale)))
    assert found.scale > 0 and code * found.scale == pytest.approx(0.1, rel=2**-4)


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize(
    ("x", "word"),
    [
        (torch.zeros(3, 4), "only zeros"),
        (torch.tensor([[0.0, -torch.inf]]), "infinity"),
        (torch.tensor([[1.0, torch.nan]]), "NaN"),
        (torch.zeros(0, 4), "no number"),
    ],
)
def test_what_has_no_scale_is_refused_by_name(observer, x, word):
    with pytest.raises(UsageError, match="'mask'") as caught:
        observe("mask", [x], E4M3, observer)
    assert word in str(caught.value)


def test_a_scale_too_small_for_fp32_is_refused():
    tiny = Grid("wide", 1e30, lambda x: x)
    with pytest.raises(UsageError, match="another observer"):
        observe("x", [torch.tensor([[1e-30]])], tiny, "amax")
