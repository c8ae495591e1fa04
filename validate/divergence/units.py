"""Unit roundoff of element types: the largest relative error of rounding one number to the type."""

import torch

from ...graph.type_names import DataType
from ...graph.values import TORCH_TYPES

_UNITS = {
    DataType.FLOAT8E4M3FN: 2.0**-4,
    DataType.FLOAT8E4M3FNUZ: 2.0**-4,
    DataType.FLOAT8E5M2: 2.0**-3,
    DataType.FLOAT8E5M2FNUZ: 2.0**-3,
    DataType.FLOAT4E2M1: 2.0**-2,
    DataType.INT8: 2.0**-6,  # of a row's largest; typical elements are a few times smaller
    DataType.UINT8: 2.0**-6,
    DataType.INT4: 2.0**-2,
    DataType.UINT4: 2.0**-2,
    DataType.DOUBLE: 2.0**-40,  # room for another order of sums
}
QUANTISED = frozenset(_UNITS) - {DataType.DOUBLE}


def unit_of(dtype: DataType | None) -> float:
    """0 for types that hold no rounded numbers (int64, bool, ...)."""
    if dtype in _UNITS:
        return _UNITS[dtype]
    torch_type = TORCH_TYPES.get(dtype) if dtype is not None else None
    if torch_type is None or not torch_type.is_floating_point:
        return 0.0
    return float(torch.finfo(torch_type).eps) / 2


def unit_of_torch(dtype: torch.dtype) -> float:
    """The same of a torch type."""
    return unit_of(next((d for d, t in TORCH_TYPES.items() if t == dtype), None))
