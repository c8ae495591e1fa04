"""Reductions over axes, and running sums; floats accumulate in fp32 (fp64 where exact or declared)."""

from collections.abc import Callable

import torch

from ..values import integers, positive_axes
from .registry import Call, Tensor, math

Reduction = Callable[[Tensor, list[int]], Tensor]


def _product(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True)
    return x


def _log_sum_exp(x: Tensor, axes: list[int]) -> Tensor:
    return torch.logsumexp(x if x.is_floating_point() else x.double(), axes, keepdim=True)


def _extremum(function: Callable[..., Tensor], empty_low: bool) -> Reduction:
    """Of nothing: the type's lowest (Max) or highest (Min) number."""

    def reduce(x: Tensor, axes: list[int]) -> Tensor:
        if x.dtype == torch.bool:
            return reduce(x.to(torch.uint8), axes).to(torch.bool)
        if all(x.shape[axis] for axis in axes):
            return function(x, axes, keepdim=True)
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        fill: float = info.min if empty_low else info.max
        if x.is_floating_point():
            fill = -torch.inf if empty_low else torch.inf
        return torch.full(
            [1 if i in axes else n for i, n in enumerate(x.shape)], fill, dtype=x.dtype
        )

    return reduce


def _mean(x: Tensor, axes: list[int]) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=True)
    return x.double().mean(axes, keepdim=True).trunc().to(x.dtype)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": lambda x, axes: x.sum(axes, keepdim=True),
    "ReduceMean": _mean,
    "ReduceMax": _extremum(torch.amax, True),
    "ReduceMin": _extremum(torch.amin, False),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "ReduceL2": lambda x, axes: _root(x.square().sum(axes, keepdim=True)),
    "ReduceSumSquare": lambda x, axes: x.square().sum(axes, keepdim=True),
    "ReduceLogSum": lambda x, axes: _logarithm(x.sum(axes, keepdim=True)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _root(x: Tensor) -> Tensor:
    return x.sqrt() if x.is_floating_point() else x.double().sqrt()


def _logarithm(x: Tensor) -> Tensor:
    return x.log() if x.is_floating_point() else x.double().log()


@math(*_REDUCTIONS)
def reduce(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Along axes (attribute before opset 18, ReduceSum 13). Without axes all are reduced, or none where noop_with_empty_axes says so."""
    chosen = integers(axes) if axes is not None else call.get_ints("axes") or []
    if not chosen and call.get_int("noop_with_empty_axes", 0):
        return _elementwise(call.op_type, x)
    positive = positive_axes(chosen, x.ndim) if chosen else list(range(x.ndim))
    result = _REDUCTIONS[call.op_type](x, positive) if x.ndim else _elementwise(call.op_type, x)
    if call.get_int("keepdims", 1) or not x.ndim:
        return result
    return result.reshape([n for i, n in enumerate(x.shape) if i not in positive])


def _elementwise(name: str, x: Tensor) -> Tensor:
    """The reduction of each element alone."""
    return _REDUCTIONS[name](x.unsqueeze(-1), [x.ndim]).squeeze(-1)


@math("ArgMax", "ArgMin")
def arg_extremum(call: Call, x: Tensor) -> Tensor:
    """The first position of the extremum, or the last where select_last_index is set."""
    (axis,) = positive_axes([call.get_int("axis", 0)], x.ndim)
    last = call.get_int("select_last_index", 0)
    searched = x.flip(axis) if last else x
    # torch promises no order among equals: find the extremum, then its first place.
    best = (torch.amax if call.op_type == "ArgMax" else torch.amin)(searched, axis, keepdim=True)
    hit = (searched == best) | (torch.isnan(searched) if x.is_floating_point() else False)
    position = hit.to(torch.uint8).argmax(axis, keepdim=True)
    if last:
        position = x.shape[axis] - 1 - position
    return position if call.get_int("keepdims", 1) else position.squeeze(axis)


@math("CumSum", "CumProd")
def cumulative(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    """Running sums or products; exclusive starts one later, reverse runs from the end."""
    dim = integers(axis)[0]
    reverse, exclusive = call.get_int("reverse", 0), call.get_int("exclusive", 0)
    x = x.flip(dim) if reverse else x
    total = call.op_type == "CumSum"
    result = x.cumsum(dim, dtype=x.dtype) if total else x.cumprod(dim, dtype=x.dtype)
    if exclusive and x.shape[dim]:
        start = torch.full_like(x.narrow(dim, 0, 1), 0 if total else 1)
        result = torch.cat([start, result.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return result.flip(dim) if reverse else result
