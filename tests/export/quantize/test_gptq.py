"""GPTQ against the plain algorithm it shortens, in float64; and what it is for: a smaller error of the product."""

import numpy as np
import pytest
import torch

from blockforge.export.quantize.gptq import Hessian, gptq
from blockforge.export.quantize.grids import E4M3, INT4

IN, OUT, TOKENS = 12, 5, 200


def inputs(seed=0, tokens=TOKENS, size=IN):
    """Correlated inputs, as activations are."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(size, size, generator=generator)
    return torch.randn(tokens, size, generator=generator) @ mix


def weights(seed=1, size=IN, out=OUT):
    return torch.randn(size, out, generator=torch.Generator().manual_seed(seed))


def hessian_of(x):
    """X' X: every token's product has the size 1."""
    made = Hessian(x.shape[1])
    made.add(x, torch.ones(len(x), 1))
    return made


def brain_surgeon(weight, scale, h, damping):
    """Optimal brain quantisation as published: invert what is left of H anew for every row."""
    h = h + np.eye(len(h)) * damping * np.diag(h).mean()
    left = sorted(range(len(h)), key=lambda i: -h[i, i])
    w, codes = weight.copy(), np.zeros_like(weight)
    while left:
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        row = left[0]
        codes[row] = np.clip(np.rint(w[row] / scale), -7, 7)
        error = (w[row] - codes[row] * scale) / inverse[0, 0]
        w[left] -= np.outer(inverse[:, 0], error)
        left = left[1:]
    return codes


@pytest.mark.parametrize("damping", [0.01, 0.5])
def test_it_is_the_published_algorithm(damping):
    x, w = inputs(), weights()
    scale = w.abs().amax(0) / 7
    found = gptq(w, scale, hessian_of(x), INT4, damping)
    h = x.double().numpy().T @ x.double().numpy()
    expected = brain_surgeon(w.double().numpy(), scale.double().numpy(), h, damping)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_blocks_change_nothing():
    """More rows than one block of updates holds."""
    x, w = inputs(size=150, tokens=600), weights(size=150)
    scale = w.abs().amax(0) / 7
    found = gptq(w, scale, hessian_of(x), INT4, 0.1)
    h = x.double().numpy().T @ x.double().numpy()
    expected = brain_surgeon(w.double().numpy(), scale.double().numpy(), h, 0.1)
    assert (found.numpy() != expected).mean() < 0.01  # fp32 sums decide a few ties differently


def test_the_product_is_closer_than_with_nearest_rounding():
    x, w = inputs(), weights()
    scale = w.abs().amax(0) / 448
    near = E4M3.round(w / scale) * scale
    ours = gptq(w, scale, hessian_of(x), E4M3) * scale
    assert (x @ ours - x @ w).norm() < 0.8 * (x @ near - x @ w).norm()
    assert (ours - w).norm() >= (near - w).norm()  # by numbers that are not the nearest


def test_a_scale_for_each_number():
    x, w = inputs(), weights()
    scales = (w.abs().reshape(3, 4, OUT).amax(1) / 7).repeat_interleave(4, 0)
    codes = gptq(w, scales, hessian_of(x), INT4)
    assert codes.abs().max() <= 7 and (x @ (codes * scales) - x @ w).norm() < 0.5 * (x @ w).norm()


def test_an_input_that_is_never_used_does_no_harm():
    x, w = inputs(), weights()
    x[:, 3] = 0
    scale = w.abs().amax(0) / 448
    codes = gptq(w, scale, hessian_of(x), E4M3)
    assert codes.isfinite().all()
    torch.testing.assert_close(codes[3], E4M3.round(w[3] / scale))


def test_a_token_with_outliers_does_not_decide_alone():
    """Counted by relative errors, the other tokens fare better than when the outlier rules."""
    x, w = inputs(), weights()
    x[0] = 1e4 * torch.randn(IN, generator=torch.Generator().manual_seed(9))
    scale = w.abs().amax(0) / 7
    relative = Hessian(IN)
    relative.add(x, x @ w)

    def rest(hessian):
        codes = gptq(w, scale, hessian, INT4)
        return float((x[1:] @ (codes * scale) - x[1:] @ w).norm())

    assert rest(relative) < 0.9 * rest(hessian_of(x))


def test_the_hessian_is_the_sum_over_feeds_of_relative_products():
    x, w = inputs(), weights()
    made = Hessian(IN)
    for part in x.split(70):
        made.add(part, part @ w)
    size = (x.double() @ w.double()).norm(dim=1, keepdim=True)
    rows = x.double() * size[:70].mean() / size
    torch.testing.assert_close(made.h.double(), rows.T @ rows, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1.0, 1e25])
def test_the_size_of_a_weight_changes_no_code(size):
    """A branch that starts near zero, or far from it, is rounded as any other."""
    x, w = inputs(), weights()
    made = Hessian(IN)
    made.add(x, x @ (w * size))
    codes = gptq(w * size, (w * size).abs().amax(0) / 448, made, E4M3)
    plain = Hessian(IN)
    plain.add(x, x @ w)
    same = codes == gptq(w, w.abs().amax(0) / 448, plain, E4M3)
    assert same.float().mean() > 0.99  # but for ties, which rounding decides


def test_a_weight_of_zeros_is_rounded_to_zeros_and_its_neighbours_by_the_inputs():
    """Projections that read one value share H; the first, all zeros, must not take it from the second."""
    x, w = inputs(), weights()
    made = Hessian(IN)
    made.add(x, x @ torch.zeros_like(w))
    assert not gptq(torch.zeros_like(w), torch.ones(OUT), made, E4M3).any()
    scale = w.abs().amax(0) / 7
    found = x @ (gptq(w, scale, made, INT4) * scale)
    nearest = x @ (INT4.round(w / scale) * scale)
    assert (found - x @ w).norm() < 0.95 * (nearest - x @ w).norm()
