"""Round a weight so that the product suffers least on the calibration inputs, not each number by itself.

    minimise  sum over tokens of || x W - x Wq ||**2 / || x W ||**2        x [in], W [in, out], Wq on the grid

Row by row of W, the most used input first: round it, then change the rows not yet rounded so that they make up for
the error (Frantar et al., GPTQ, 2023, from the optimal brain surgeon). x are the inputs that the quantised graph
really sees. Every token counts by its relative error: a token with outliers would decide alone otherwise.
"""

from dataclasses import dataclass, field

import torch

from ..calibration.observers import Grid

BLOCK = 64  # rows between two full updates
TRUST = 0.4  # damping of inputs as many as tokens; fewer inputs are known better
LEAST, MOST = 0.01, 1.0


@dataclass(slots=True)
class Hessian:
    """H = X' X summed over feeds, for all linears that read one value; fp32 [in, in].

    unit: the mean size of the first feed's products. Only ratios count, and this one keeps H within fp32.
    """

    size: int
    h: torch.Tensor = field(init=False)
    tokens: int = 0
    unit: float = 0.0

    def __post_init__(self) -> None:
        self.h = torch.zeros(self.size, self.size)

    def add(self, x: torch.Tensor, product: torch.Tensor) -> None:
        """Count inputs fp32 [tokens, in], each by its own product [tokens, out]; by its own size where all products are zero."""
        size = _sizes(product) if product.any() else _sizes(x)
        mean = float(size.mean()) if len(x) else 0.0
        if mean:
            self.unit = self.unit or mean
            rows = x / (size.clamp(min=1e-6 * mean) / self.unit).to(x.dtype)
            self.h.addmm_(rows.T, rows)
        self.tokens += len(x)

    @property
    def damping(self) -> float:
        """The share of its mean diagonal to add to H: a few tokens must not be fitted too closely."""
        return min(max(TRUST * self.size / max(self.tokens, 1), LEAST), MOST)

    def damped(self, damping: float) -> torch.Tensor:
        """H with a share of its mean diagonal added."""
        mean = float(self.h.diagonal().mean()) or 1.0
        return self.h + torch.eye(self.size) * (damping * mean)


def _sizes(rows: torch.Tensor) -> torch.Tensor:
    return rows.double().square().sum(1, keepdim=True).sqrt()


def gptq(
    weight: torch.Tensor,
    scale: torch.Tensor,
    hessian: Hessian,
    grid: Grid,
    damping: float | None = None,
) -> torch.Tensor:
    """Numbers of the grid, fp32 [in, out], for `weight` [in, out] with `scale` [out] or [in, out].

    damping: None for the hessian's own. The rows are worked off one after another by operations too small for two
    threads: waiting for each other, they took seven times as long on two cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _round_rows(weight, scale, hessian, grid, damping)
    finally:
        torch.set_num_threads(threads)


def _round_rows(
    weight: torch.Tensor,
    scale: torch.Tensor,
    hessian: Hessian,
    grid: Grid,
    damping: float | None,
) -> torch.Tensor:
    damping = hessian.damping if damping is None else damping
    order = hessian.h.diagonal().argsort(descending=True, stable=True)
    h = hessian.damped(damping)[order][:, order]
    factor = _inverse_factor(h)
    rows = weight[order].clone()
    scales = scale[order] if scale.ndim == 2 else scale.expand_as(rows)
    codes = torch.empty_like(rows)
    for start in range(0, len(rows), BLOCK):
        end = min(start + BLOCK, len(rows))
        errors = torch.empty_like(rows[start:end])
        for k in range(start, end):
            codes[k] = grid.round(rows[k] / scales[k])
            error = (rows[k] - codes[k] * scales[k]) / factor[k, k]
            rows[k + 1 : end].addr_(factor[k, k + 1 : end], error, alpha=-1)
            errors[k - start] = error
        rows[end:] -= factor[start:end, end:].T @ errors
    result = torch.empty_like(codes)
    result[order] = codes
    return result


def _inverse_factor(h: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor U of H^-1 = U' U."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    found: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return found
