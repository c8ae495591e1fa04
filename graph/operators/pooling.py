"""Pooling over sliding windows of the spatial axes; sums in fp32."""

import torch

from .registry import Call, Tensor, math
from .windows import Window, padded, window_of, windows


def _window(call: Call, x: Tensor) -> Window:
    return window_of(call, tuple(x.shape[2:]), tuple(call.get_ints("kernel_shape") or []))


def _beyond(window: Window) -> tuple[int, ...]:
    return tuple(a + e for a, e in zip(window.after, window.extra, strict=True))


@math("MaxPool")
def max_pool(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each window and where it lies in the flattened input (the first of equals)."""
    window = _window(call, x)
    low = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    cells = windows(padded(x, window.before, _beyond(window), low), window)
    places = _places(call, x)
    inside = windows(padded(places, window.before, _beyond(window), -1), window)
    # A padding cell never wins, not even over -inf.
    number = cells if cells.is_floating_point() else cells.double()
    ranked = torch.where(inside < 0, -torch.inf, number)
    winner = (ranked == ranked.amax(-1, keepdim=True)) & (inside >= 0)
    first = winner.to(torch.uint8).argmax(-1, keepdim=True)
    return cells.amax(-1), inside.gather(-1, first).squeeze(-1)


def _places(call: Call, x: Tensor) -> Tensor:
    """The flat position of each element; storage_order 1 counts the spatial axes column by column."""
    if not call.get_int("storage_order", 0):
        return torch.arange(x.numel()).reshape(x.shape)
    spatial = x.shape[2:]
    order = torch.arange(spatial.numel()).reshape(tuple(reversed(spatial)))
    order = order.permute(*reversed(range(order.ndim)))
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape([*x.shape[:2], *[1] * len(spatial)])
    return planes * spatial.numel() + order


@math("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    """Padding counts only where count_include_pad says so; cells that ceil_mode adds never do."""
    window = _window(call, x)
    total = windows(padded(x, window.before, _beyond(window), 0.0), window).sum(-1)
    ones = torch.ones_like(x[:1, :1])
    fill = 1.0 if call.get_int("count_include_pad", 0) else 0.0
    counted = padded(ones, window.before, window.after, fill)
    none = (0,) * len(window.extra)
    return total / windows(padded(counted, none, window.extra, 0.0), window).sum(-1)


@math("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each window."""
    window = _window(call, x)
    p = call.get_int("p", 2)
    cells = windows(padded(x, window.before, _beyond(window), 0.0), window)
    return cells.abs().pow(p).sum(-1).pow(1 / p)


@math("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call, x: Tensor) -> Tensor:
    """One number per channel: mean, largest or p-norm."""
    axes = list(range(2, x.ndim))
    if call.op_type == "GlobalMaxPool":
        return x.amax(axes, keepdim=True)
    if call.op_type == "GlobalAveragePool":
        return x.mean(axes, keepdim=True)
    p = call.get_int("p", 2)
    return x.abs().pow(p).sum(axes, keepdim=True).pow(1 / p)


@math("MaxUnpool")
def max_unpool(call: Call, x: Tensor, places: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Each number back to where MaxPool found it, zeros elsewhere."""
    kernel = call.get_ints("kernel_shape") or []
    strides = call.get_ints("strides") or [1] * len(kernel)
    pads = call.get_ints("pads") or [0] * 2 * len(kernel)
    spatial = [
        (n - 1) * s + k - before - after
        for n, s, k, before, after in zip(
            x.shape[2:], strides, kernel, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    ]
    inferred = [*x.shape[:2], *spatial]
    total = torch.zeros(inferred, dtype=x.dtype).reshape(-1)
    filled = total.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(inferred)
    if sizes is None:
        return filled
    wanted = [int(n) for n in sizes]
    result = torch.zeros(wanted, dtype=x.dtype)
    # The positions count in the inferred shape; a larger asked shape keeps them at the front.
    result[tuple(slice(0, n) for n in inferred)] = filled
    return result
