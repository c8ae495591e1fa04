"""Observers: the static scale of a tensor from the numbers that calibration saw.

    amax        scale = max|x| / largest
    percentile  scale = the 99.99th percentile of |x| / largest
    mse         the scale, of 8 an octave below amax's, with the least sum of w (x - scale * round(x / scale))**2

w weighs each column by what the linears that read it make of an error there. A floating-point grid is alike in
every octave, so what a scale decides is the mantissa at which a number lies, what saturates and what is subnormal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ...core.errors import UsageError

Observer = Literal["amax", "percentile", "mse"]
OBSERVERS: tuple[str, ...] = get_args(Observer)
PERCENTILE = 0.9999
STEPS = 8  # scales tried per octave
OCTAVES = 2  # how far below amax's scale the search goes
SAMPLES = 2**17  # numbers that the search looks at

Round = Callable[[torch.Tensor], torch.Tensor]  # fp32 -> the nearest number of the grid, saturated


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers of a quantised type: the largest of them and how to round to them."""

    name: str
    largest: float
    round: Round


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one tensor. amax: largest magnitude; scale: fp32, positive and finite."""

    amax: float
    scale: float
    observer: str


def observe(
    name: str,
    tensors: Sequence[torch.Tensor],
    grid: Grid,
    observer: Observer,
    weight: torch.Tensor | None = None,
) -> Observed:
    """The scale of `tensors` [..., columns] on `grid`; weight: importance of each column.

    Raises UsageError naming the tensor where it holds NaN or infinity, or nothing but zeros: such a scale would be
    zero or infinite.
    """
    asked = f"scale of {name!r}"
    if not tensors or not any(t.numel() for t in tensors):
        raise UsageError(asked, found="calibration saw no number of it", fix="Give longer feeds")
    amax = max(float(t.abs().amax()) for t in tensors if t.numel())
    if not amax < float("inf"):  # NaN as well
        raise UsageError(
            asked,
            found="it holds NaN or infinity (a mask, or a value beyond its type)",
            fix="Leave it in high precision with keep, or repair the graph first",
        )
    if amax == 0:
        raise UsageError(
            asked,
            found="calibration saw only zeros, and a scale of zero divides by zero",
            fix="Calibrate with feeds that reach it, or leave it in high precision with keep",
        )
    chosen = _SCALES[observer](tensors, amax, grid, weight)
    scale = float(torch.tensor(chosen, dtype=torch.float32))
    if not 0 < scale < float("inf"):
        raise UsageError(asked, found=f"scale {scale} from amax {amax}", fix="Use another observer")
    return Observed(amax, scale, observer)


def _amax(
    tensors: Sequence[torch.Tensor], amax: float, grid: Grid, weight: torch.Tensor | None
) -> float:
    return amax / grid.largest


def _percentile(
    tensors: Sequence[torch.Tensor], amax: float, grid: Grid, weight: torch.Tensor | None
) -> float:
    flat = torch.cat([t.abs().reshape(-1).float() for t in tensors])
    rank = max(1, min(len(flat), round(PERCENTILE * len(flat))))
    return (float(flat.kthvalue(rank).values) or amax) / grid.largest


def _mse(
    tensors: Sequence[torch.Tensor], amax: float, grid: Grid, weight: torch.Tensor | None
) -> float:
    rows = torch.cat([t.reshape(-1, t.shape[-1] if t.ndim else 1) for t in tensors]).float()
    stride = -(-rows.numel() // SAMPLES)
    peak = rows.abs().amax(1).argmax()
    rows = torch.cat([rows[::stride], rows[peak : peak + 1]])  # the outlier's row is always seen
    best, best_error = amax / grid.largest, float("inf")
    for step in range(-STEPS + 1, OCTAVES * STEPS + 1):
        scale = amax / grid.largest * 2.0 ** (-step / STEPS)
        error = (rows - grid.round(rows / scale) * scale).square().sum(0)
        total = float((error if weight is None else error * weight).double().sum())
        if total < best_error:
            best, best_error = scale, total
    return best


_SCALES = {"amax": _amax, "percentile": _percentile, "mse": _mse}
