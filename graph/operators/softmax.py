"""Softmax and its relatives: computed in fp32, the result rounded once."""

from collections.abc import Callable

import torch

from ..values import positive_axes
from .registry import Call, Tensor, math

Along = Callable[[Tensor, int], Tensor]


@math("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    """Along one axis; before opset 13 along all axes from `axis` (default 1) on, taken together."""
    functions: dict[str, Along] = {
        "Softmax": lambda x, axis: torch.softmax(x, axis),
        "LogSoftmax": lambda x, axis: torch.log_softmax(x, axis),
        "Hardmax": _hardmax,
    }
    function = functions[call.op_type]
    if call.version >= 13:
        (axis,) = positive_axes([call.get_int("axis", -1)], x.ndim)
        return function(x, axis)
    (axis,) = positive_axes([call.get_int("axis", 1)], x.ndim)
    return function(x.flatten(axis), axis).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """One at the first largest element, zero elsewhere."""
    largest = (x == x.amax(axis, keepdim=True)).to(torch.uint8).argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, largest, 1.0)
