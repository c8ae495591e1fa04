"""How a sliding window lies on the spatial axes of [N, C, ...]: sizes, strides, padding, and auto_pad."""

import math as number
from dataclasses import dataclass

from torch.nn import functional

from .registry import Call, Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """One entry per spatial axis. extra: cells beyond the end padding that ceil_mode adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extra: tuple[int, ...]


def window_of(call: Call, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window of a convolution or pooling over spatial `sizes`."""
    rank = len(kernel)
    strides = tuple(call.get_ints("strides") or [1] * rank)
    dilations = tuple(call.get_ints("dilations") or [1] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after = _pads(call, sizes, spans, strides)
    extra = tuple(
        _ceil_extra(n + b + a, n + b, span, stride) if call.get_int("ceil_mode", 0) else 0
        for n, b, a, span, stride in zip(sizes, before, after, spans, strides, strict=True)
    )
    return Window(kernel, strides, dilations, before, after, extra)


def _pads(
    call: Call, sizes: tuple[int, ...], spans: list[int], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mode = call.get_str("auto_pad", "NOTSET")
    rank = len(sizes)
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode == "NOTSET":
        pads = call.get_ints("pads") or [0] * 2 * rank
        return tuple(pads[:rank]), tuple(pads[rank:])
    totals = [
        max((number.ceil(n / s) - 1) * s + span - n, 0)
        for n, s, span in zip(sizes, strides, spans, strict=True)
    ]
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _ceil_extra(padded: int, start_limit: int, span: int, stride: int) -> int:
    """Cells that the last window of ceil_mode lacks; a window that would start in the end padding is dropped."""
    count = number.ceil((padded - span) / stride) + 1
    if (count - 1) * stride >= start_limit:
        count -= 1
    return max((count - 1) * stride + span - padded, 0)


def padded(x: Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float) -> Tensor:
    """x [N, C, ...] with its spatial axes padded by a constant."""
    amounts = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return functional.pad(x, amounts, value=value) if any(amounts) else x


def windows(x: Tensor, window: Window) -> Tensor:
    """Every window of the padded x [N, C, ...], cells flattened: [N, C, ..., cells]."""
    rank = len(window.kernel)
    for axis, (kernel, stride, dilation) in enumerate(
        zip(window.kernel, window.strides, window.dilations, strict=True)
    ):
        x = x.unfold(2 + axis, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    return x.flatten(-rank)
