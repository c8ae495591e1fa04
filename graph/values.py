"""What the values of a running graph are in torch, and which element type each one has.

A value is a tensor; a `Narrow` for the element types that torch lacks; a list (an ONNX sequence); or None (an
optional value that is absent).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from ..core.errors import UsageError
from .type_names import DataType, type_name

TORCH_TYPES: dict[DataType, torch.dtype] = {
    DataType.FLOAT: torch.float32,
    DataType.DOUBLE: torch.float64,
    DataType.FLOAT16: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.FLOAT8E4M3FN: torch.float8_e4m3fn,
    DataType.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    DataType.FLOAT8E5M2: torch.float8_e5m2,
    DataType.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    DataType.FLOAT8E8M0: torch.float8_e8m0fnu,
    DataType.INT8: torch.int8,
    DataType.INT16: torch.int16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
    DataType.UINT8: torch.uint8,
    DataType.UINT16: torch.uint16,
    DataType.UINT32: torch.uint32,
    DataType.UINT64: torch.uint64,
    DataType.BOOL: torch.bool,
    DataType.COMPLEX64: torch.complex64,
    DataType.COMPLEX128: torch.complex128,
}
_DATA_TYPES = {torch_type: data_type for data_type, torch_type in TORCH_TYPES.items()}

# The element types that torch lacks, each with the torch type that holds its numbers exactly.
NARROW_TYPES: dict[DataType, torch.dtype] = {
    DataType.INT2: torch.int8,
    DataType.INT4: torch.int8,
    DataType.UINT2: torch.uint8,
    DataType.UINT4: torch.uint8,
    DataType.FLOAT4E2M1: torch.float32,
    DataType.FLOAT6E2M3: torch.float32,
    DataType.FLOAT6E3M2: torch.float32,
}

# Floating types that hold activations. The narrower ones are quantised types: their grid is part of the
# graph's meaning, also where everything else is computed exactly.
WIDE_FLOATS = frozenset({DataType.DOUBLE, DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16})

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ARITHMETIC = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}
# Types for which torch has few kernels: moved as integers of the same size.
_MOVED_AS_BITS = frozenset(_ARITHMETIC) - {torch.float16, torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Narrow:
    """A tensor of an element type that torch lacks: its numbers, held in a wider type."""

    data: torch.Tensor
    dtype: DataType


Value: TypeAlias = "torch.Tensor | Narrow | list[Value] | None"


def data_type_of(value: Value) -> DataType | None:
    """The ONNX element type of a value; None for a sequence and an absent value."""
    if isinstance(value, torch.Tensor):
        return _DATA_TYPES[value.dtype]
    return value.dtype if isinstance(value, Narrow) else None


def describe(value: Value) -> str:
    """Type and shape of a value for a message: `fp16[2, 8]`."""
    if isinstance(value, torch.Tensor | Narrow):
        data = value.data if isinstance(value, Narrow) else value
        return f"{type_name(data_type_of(value))}{list(data.shape)}"
    return "absent" if value is None else f"sequence of {len(value)}"


def arithmetic(value: torch.Tensor | Narrow) -> torch.Tensor:
    """The same numbers in a type that torch computes with: 16- and 8-bit floats as fp32, unsigned integers in
    a wider signed type.

    Raises UsageError for uint64 numbers of 2**63 and more.
    """
    tensor = value.data if isinstance(value, Narrow) else value
    wide = _ARITHMETIC.get(tensor.dtype)
    if wide is None:
        return tensor
    if tensor.dtype == torch.uint64 and bool((tensor.view(torch.int64) < 0).any()):
        raise UsageError("uint64 arithmetic", found="a number of 2**63 or more", fix="Use int64")
    return tensor.to(wide)


def as_bits(value: torch.Tensor | Narrow) -> torch.Tensor:
    """The same elements in a type that torch can move: odd types as integers of their size."""
    if isinstance(value, Narrow):
        return value.data
    return value.view(_BITS[value.itemsize]) if value.dtype in _MOVED_AS_BITS else value


def from_bits(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor | Narrow:
    """Undo `as_bits` for elements of type `dtype`."""
    if dtype in NARROW_TYPES:
        return Narrow(tensor, dtype)
    torch_type = TORCH_TYPES[dtype]
    return tensor.view(torch_type) if torch_type in _MOVED_AS_BITS else tensor


def value_from_numpy(array: np.ndarray, dtype: DataType) -> torch.Tensor | Narrow:
    """An array (ml_dtypes included) as a value; shares the memory where torch has the type."""
    if dtype in NARROW_TYPES:
        holder = NARROW_TYPES[dtype]
        kind = np.float32 if holder.is_floating_point else np.int8 if holder.is_signed else np.uint8
        return Narrow(torch.from_numpy(array.astype(kind)), dtype)
    if dtype not in TORCH_TYPES:
        raise UsageError(f"element type {dtype.name}", found="the evaluator has no such type")
    torch_type = TORCH_TYPES[dtype]
    shared = array
    if torch_type == torch.bfloat16 or torch_type in _MOVED_AS_BITS:  # torch reads ml_dtypes' bits
        shared = array.reshape(-1).view(f"u{array.itemsize}")
    with warnings.catch_warnings():
        # A weight's map is read-only, and no kernel writes into its inputs.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(shared)
    return tensor if shared is array else tensor.view(torch_type).reshape(array.shape)


def split_axis(x: torch.Tensor, axis: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """x with one axis split into several; one of `sizes` may be -1."""
    axis = axis % x.ndim
    known = math.prod(n for n in sizes if n != -1)
    full = [x.shape[axis] // known if n == -1 else n for n in sizes]
    return x.reshape([*x.shape[:axis], *full, *x.shape[axis + 1 :]])


def integers(value: torch.Tensor) -> list[int]:
    """The elements of a small integer tensor (axes, sizes) as Python integers."""
    return [int(v) for v in value.reshape(-1).tolist()]


def positive_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front; IndexError where one does not exist."""
    for axis in axes:
        if not -rank <= axis < max(rank, 1):
            raise IndexError(f"axis {axis} of a tensor of rank {rank}")
    return [axis % rank if rank else 0 for axis in axes]
