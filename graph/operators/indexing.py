"""Gathering and scattering of elements."""

from typing import Any

import torch

from ..values import integers, positive_axes
from .registry import Call, Tensor, math, move


def _wrapped(positions: Tensor, length: int) -> Tensor:
    """Non-negative int64 positions; IndexError names one outside -length .. length-1."""
    positions = positions.to(torch.int64)
    if positions.numel():
        low, high = (int(v) for v in torch.aminmax(positions))
        if low < -length or high >= length:
            raise IndexError(
                f"index {low if low < -length else high} into an axis of size {length}"
            )
    return torch.where(positions < 0, positions + length, positions)


@move("Gather")
def gather(call: Call, x: Tensor, positions: Tensor) -> Tensor:
    """Slices of an axis at `positions`, whose shape takes the axis's place."""
    (axis,) = positive_axes([call.get_int("axis", 0)], x.ndim)
    picked = _wrapped(positions, x.shape[axis])
    taken = x.index_select(axis, picked.reshape(-1))
    return taken.reshape([*x.shape[:axis], *positions.shape, *x.shape[axis + 1 :]])


@move("GatherElements")
def gather_elements(call: Call, x: Tensor, positions: Tensor) -> Tensor:
    """One element per position along an axis."""
    (axis,) = positive_axes([call.get_int("axis", 0)], x.ndim)
    return x.gather(axis, _wrapped(positions, x.shape[axis]))


def _nd_index(positions: Tensor, sizes: tuple[int, ...], batch: int) -> tuple[Tensor, ...]:
    """Index tensors for advanced indexing: the batch axes first, then one per last-axis entry."""
    depth = positions.shape[-1]
    lead = positions.ndim - 1
    grids = [
        torch.arange(sizes[axis]).reshape([-1 if i == axis else 1 for i in range(lead)])
        for axis in range(batch)
    ]
    rest = [_wrapped(positions[..., i], sizes[batch + i]) for i in range(depth)]
    return (*grids, *rest)


@move("GatherND")
def gather_nd(call: Call, x: Tensor, positions: Tensor) -> Tensor:
    """positions [..., k] address the first k axes after the batch axes."""
    batch = call.get_int("batch_dims", 0)
    return x[_nd_index(positions, tuple(x.shape), batch)]


@math("ScatterND")
def scatter_nd(call: Call, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
    """A copy of x with the addressed slices replaced, or combined by `reduction`."""
    return _put(
        x, _nd_index(positions, tuple(x.shape), 0), updates, call.get_str("reduction", "none")
    )


def _put(x: Tensor, index: tuple[Tensor, ...], updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.index_put(index, updates)
    if reduction == "add":
        return x.index_put(index, updates, accumulate=True)
    # Combine in the order of the positions: put each update's own flat place through scatter_reduce.
    places = torch.arange(x.numel()).reshape(x.shape)[index].reshape(-1)
    flat = updates.expand(torch.arange(x.numel()).reshape(x.shape)[index].shape).reshape(-1)
    return _reduced(x.reshape(-1), 0, places, flat, reduction).reshape(x.shape)


def _reduced(x: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    names: dict[str, Any] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    if x.dtype == torch.bool:
        combined = x.to(torch.int8).scatter_reduce(
            axis, places, updates.to(torch.int8), names[reduction]
        )
        return combined != 0
    return x.scatter_reduce(axis, places, updates, names[reduction])


@math("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
    """A copy of x with single elements along an axis replaced or combined."""
    (axis,) = positive_axes([call.get_int("axis", 0)], x.ndim)
    places = _wrapped(positions, x.shape[axis])
    reduction = call.get_str("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return _reduced(x, axis, places, updates, reduction)


@move("TensorScatter")
def tensor_scatter(
    call: Call, cache: Tensor, update: Tensor, write_indices: Tensor | None = None
) -> Tensor:
    """cache with `update` written from each batch entry's write index on; circular wraps around.

    cache [batch, ..., max_sequence, ...], update the same but for its sequence axis.
    """
    axis = call.get_int("axis", -2)
    axis = axis + cache.ndim if axis < 0 else axis
    batch, length = cache.shape[0], cache.shape[axis]
    steps = update.shape[axis]
    starts = torch.zeros(batch, dtype=torch.int64) if write_indices is None else write_indices
    places = starts.reshape(-1, 1) + torch.arange(steps)  # [batch, steps]
    if call.get_str("mode", "linear") == "circular":
        places = places % length
    elif places.numel() and int(places.max()) >= length:
        raise IndexError(f"writes position {int(places.max())} of a cache of {length}")
    moved = cache.movedim(axis, 1)
    put = moved.index_put((torch.arange(batch).reshape(-1, 1), places), update.movedim(axis, 1))
    return put.movedim(1, axis)


@move("Compress")
def compress(call: Call, x: Tensor, condition: Tensor) -> Tensor:
    """The slices where the condition holds; it may be shorter than the axis."""
    chosen = condition.reshape(-1).nonzero().reshape(-1)
    if not call.has("axis"):
        return x.reshape(-1)[chosen]
    return x.index_select(call.get_int("axis", 0), chosen)


@math("NonZero")
def non_zero(call: Call, x: Tensor) -> Tensor:
    """Positions as int64[rank, count]."""
    return torch.nonzero(x.reshape(1) if x.ndim == 0 else x).T.contiguous()


@math("TopK")
def top_k(call: Call, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) of an axis with their positions; of equal ones the earlier comes first."""
    count = call.get_int("k", 1) if k is None else integers(k)[0]
    (axis,) = positive_axes([call.get_int("axis", -1)], x.ndim)
    ordered = torch.sort(x, dim=axis, descending=bool(call.get_int("largest", 1)), stable=True)
    return ordered.values.narrow(axis, 0, count), ordered.indices.narrow(axis, 0, count)


@math("Unique")
def unique(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    """Unique elements (or slices of an axis) with first positions, inverse positions and counts."""
    axis = call.get_int("axis", 0) if call.has("axis") else None
    rows = x.reshape(-1) if axis is None else x
    found, inverse, counts = torch.unique(
        rows, sorted=True, return_inverse=True, return_counts=True, dim=axis or 0
    )
    inverse = inverse.reshape(-1)
    first = torch.full((counts.numel(),), inverse.numel(), dtype=torch.int64)
    first = first.scatter_reduce(0, inverse, torch.arange(inverse.numel()), "amin")
    if not call.get_int("sorted", 1):
        order = torch.argsort(first)
        place = torch.empty_like(order).scatter(0, order, torch.arange(order.numel()))
        found = found.index_select(axis or 0, order)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return found, first, inverse, counts
