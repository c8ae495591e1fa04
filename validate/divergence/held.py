"""Values that one graph holds at powers of two of the other's: found, applied, and excused in the weights that do it.

computed = other * 2^k, k whole numbers, one for each index of the last axis; of four axes (attention's heads and the
numbers in each) one for each index of the two beside batch and tokens. 0 where a channel is not such a multiple
"""

import torch

NEAR = (
    2.0**-3
)  # how far a channel may lie from its power, relative: a first sieve before the noise judges
_TOKENS = ((0, 1, 2), (0, 1), (0, 2), (0, 3))  # axes that share an exponent


def powers(computed: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """k of `computed` over `other` (one shape, floats); None where every channel has k = 0."""
    if not computed.is_floating_point() or computed.shape != other.shape or not computed.ndim:
        return None
    mine, theirs = computed.double(), other.double()
    if not mine.numel() or not bool(mine.isfinite().all() & theirs.isfinite().all()):
        return None
    best, least = None, NEAR * float(mine.norm())
    for axes in _TOKENS if mine.ndim == 4 else (tuple(range(mine.ndim - 1)),):
        one, two = (
            x.square().mean(axes, keepdim=True).sqrt() if axes else x.abs() for x in (mine, theirs)
        )
        k = _whole(one, two)
        errors = (mine - theirs * torch.exp2(k)).square()
        near = (errors.mean(axes, keepdim=True) if axes else errors).sqrt() <= NEAR * one
        k = torch.where(near, k, 0.0)
        left = float((mine - theirs * torch.exp2(k)).norm())
        if left < least and bool(k.any()):
            best, least = k, left
    return best


def scaled(value: torch.Tensor, k: torch.Tensor | None) -> torch.Tensor:
    """value * 2^k in float64, whose range holds every product; the value itself where k is None."""
    return value if k is None else value.double() * torch.exp2(k)


def weight_by_powers(mine: torch.Tensor, other: torch.Tensor, *, rows: bool) -> bool:
    """Whether mine[..., i, j] = other[..., i, j] * 2^(a_i + b_j) but for rounding to either type.

    rows: whether a_i may differ from 0: what reads a table does not undo its rows.
    """
    if mine.shape != other.shape or mine.ndim < 2:
        return False
    infos = [torch.finfo(x.dtype) for x in (mine, other)]
    unit, least = max(i.eps for i in infos), infos[0].smallest_normal * infos[0].eps
    a, b = (x.double().reshape(-1, x.shape[-1]) for x in (mine, other))
    if not bool(a.isfinite().all() & b.isfinite().all()):
        return False
    for axes in ((0, 1), (1, 0)) if rows else ((0,),):
        left = b
        for axis in axes:
            k = _whole(*(x.square().sum(axis, keepdim=True).sqrt() for x in (a, left)))
            left = left * torch.exp2(k)
        if bool(((a - left).abs() <= unit * a.abs() + least).all()):
            return True
    return False


def _whole(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """log2(one / two) as the nearest whole number, 0 where either is 0."""
    given = (one > 0) & (two > 0)
    ratio = torch.where(given, one, 1.0) / torch.where(given, two, 1.0)
    return ratio.log2().round()
