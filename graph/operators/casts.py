"""Casts between element types; the rounding itself happens where every result is rounded."""

import torch

from ..rounding import round_to
from ..type_names import DataType
from ..values import TORCH_TYPES, Narrow, Value, arithmetic, as_bits, data_type_of, from_bits
from .registry import Call, Tensor, math, raw


@math("Cast", "CastLike")
def cast(call: Call, x: Tensor, like: Tensor | None = None) -> Tensor:
    """The numbers as they are: the result is rounded to the type that `to` (or `like`) names."""
    return x


@raw("BitCast")
def bit_cast(call: Call, x: Tensor) -> Value:
    """The same bits read as another type of the same size."""
    to = DataType(call.get_int("to", 0))
    declared = call.dtypes[0]
    stored: Tensor | Narrow = x
    if call.exact and declared is not None and data_type_of(x) != declared:
        stored = round_to(arithmetic(x), declared)
    bits = as_bits(stored)
    if bits.dtype.is_floating_point or bits.dtype == torch.bool:
        bits = bits.view(
            {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize]
        )
    result = from_bits(bits, to)
    if isinstance(result, torch.Tensor) and data_type_of(result) != to:
        return result.view(TORCH_TYPES[to])
    return result
