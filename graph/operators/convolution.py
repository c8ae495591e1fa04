"""Convolutions, in fp32 (int32 for the integer forms)."""

import torch
from torch.nn import functional

from ..type_names import DataType
from .registry import Call, Tensor, math
from .windows import padded, window_of, windows

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_BACKWARD = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, C, ...], weight [M, C / group, ...] -> [N, M, ...]."""
    window = window_of(call, tuple(x.shape[2:]), tuple(weight.shape[2:]))
    function = _FORWARD[weight.ndim - 2]
    return function(
        padded(x, window.before, window.after, 0.0),
        weight,
        bias,
        stride=window.strides,
        dilation=window.dilations,
        groups=call.get_int("group", 1),
    )


@math("Conv")
def conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, C, ...] with weight [M, C / group, ...] and bias [M]: [N, M, ...]."""
    return _convolve(call, x, weight, bias)


@math("ConvInteger")
def conv_integer(
    call: Call,
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Tensor:
    """Sums of integer products are exact in fp64 up to 2**53."""
    return _convolve(call, _centred(x, x_zero), _centred(weight, w_zero)).to(torch.int32)


@math("QLinearConv")
def qlinear_conv(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Integer sums, one rescaling per output channel, rounded to nearest even and saturated."""
    total = _convolve(
        call, _centred(x, x_zero), _centred(weight, w_zero), None if bias is None else bias.double()
    )
    ratio = (x_scale.double() * w_scale.double() / y_scale.double()).reshape(-1)
    whole = torch.round(total * ratio.reshape([1, -1] + [1] * (total.ndim - 2))) + y_zero.double()
    signed = call.dtypes[7] == DataType.INT8
    return whole.clamp(-128, 127) if signed else whole.clamp(0, 255)


def _centred(x: Tensor, zero: Tensor | None) -> Tensor:
    """A zero point per output channel lies along the weight's first axis."""
    if zero is None:
        return x.double()
    if zero.ndim == 1 and zero.numel() > 1:
        zero = zero.reshape([-1] + [1] * (x.ndim - 1))
    return x.double() - zero.double().reshape(() if zero.numel() == 1 else zero.shape)


@math("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, C, ...], weight [C, M / group, ...]: the whole result, then cut to the asked padding or shape."""
    rank = weight.ndim - 2
    strides = call.get_ints("strides") or [1] * rank
    dilations = call.get_ints("dilations") or [1] * rank
    extra = call.get_ints("output_padding") or [0] * rank
    whole = _BACKWARD[rank](
        x, weight, None, stride=strides, dilation=dilations, groups=call.get_int("group", 1)
    )
    totals = [n + e for n, e in zip(whole.shape[2:], extra, strict=True)]
    before, after = _cuts(call, tuple(x.shape[2:]), totals, strides)
    negative = tuple(-b for b in before)
    growth = tuple(e - a for e, a in zip(extra, after, strict=True))
    result = padded(whole, negative, growth, 0.0)
    return result if bias is None else result + bias.reshape([1, -1] + [1] * rank)


def _cuts(
    call: Call, sizes: tuple[int, ...], totals: list[int], strides: list[int]
) -> tuple[list[int], list[int]]:
    """How much goes from the beginning and the end of each spatial axis."""
    rank, mode = len(sizes), call.get_str("auto_pad", "NOTSET")
    shape = call.get_ints("output_shape")
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = [n * s for n, s in zip(sizes, strides, strict=True)]
    if shape is None:
        pads = call.get_ints("pads") or [0] * 2 * rank
        return pads[:rank], pads[rank:]
    excess = [total - n for total, n in zip(totals, shape[-rank:], strict=True)]
    small = [n // 2 for n in excess]
    large = [n - n // 2 for n in excess]
    return (small, large) if mode == "SAME_UPPER" else (large, small)


@math("Col2Im")
def col2im(call: Call, columns: Tensor, image: Tensor, block: Tensor) -> Tensor:
    """columns [N, C * cells, positions] added up where their windows overlap: [N, C, image...]."""
    sizes = [int(n) for n in image]
    kernel = tuple(int(n) for n in block)
    window = window_of(call, tuple(sizes), kernel)
    places = torch.arange(1, 1 + int(image.prod())).reshape([1, 1, *sizes])
    cells = windows(padded(places, window.before, window.after, 0), window)  # [1, 1, ..., cells]
    target = cells.reshape(-1, cells.shape[-1]).T.reshape(-1)  # cells, then positions; 0 is padding
    flat = columns.reshape(columns.shape[0], -1, target.numel())
    result = torch.zeros(*flat.shape[:2], int(image.prod()) + 1, dtype=columns.dtype)
    return result.index_add(2, target, flat)[..., 1:].reshape([*flat.shape[:2], *sizes])


@math("CausalConvWithState")
def causal_conv_with_state(
    call: Call,
    x_BCT: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A depthwise convolution over the past k-1 steps and the present one, and the last k-1 steps (opset 27)."""
    keep = weight.shape[-1] - 1
    if past is None:
        past = torch.zeros(*x_BCT.shape[:2], keep, dtype=x_BCT.dtype)
    joined = torch.cat([past, x_BCT], -1)
    y = functional.conv1d(joined, weight, bias, groups=weight.shape[0])
    if call.get_str("activation", "none") in ("silu", "swish"):
        y = functional.silu(y)
    return y, joined[..., joined.shape[-1] - keep :]
