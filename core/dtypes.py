"""One table of element types: our name beside torch's, numpy's, ONNX's and TensorRT's.

torch and ml_dtypes are looked up lazily: the table itself costs no import.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class _Row:
    torch_name: str
    numpy_name: str  # ml_dtypes' name where numpy has none
    onnx: int  # TensorProto.DataType
    tensorrt: str | None  # member of trt.DataType
    bits: int
    floating: bool = False


class DType(Enum):
    """An element type, named as recipes and manifests spell it."""

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def torch(self) -> "torch.dtype":
        import torch

        dtype: torch.dtype = getattr(torch, _TABLE[self].torch_name)
        return dtype

    @property
    def numpy(self) -> "np.dtype":
        import ml_dtypes
        import numpy as np

        name = _TABLE[self].numpy_name
        return np.dtype(getattr(ml_dtypes, name, name))

    @property
    def onnx(self) -> int:
        """The TensorProto.DataType number."""
        return _TABLE[self].onnx

    @property
    def tensorrt(self) -> str | None:
        """The member of TensorRT's DataType, None where TensorRT has no such type."""
        return _TABLE[self].tensorrt

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _TABLE[self].bits // 8

    @property
    def floating(self) -> bool:
        return _TABLE[self].floating


_TABLE: dict[DType, _Row] = {
    DType.FP64: _Row("float64", "float64", 11, None, 64, True),
    DType.FP32: _Row("float32", "float32", 1, "FLOAT", 32, True),
    DType.FP16: _Row("float16", "float16", 10, "HALF", 16, True),
    DType.BF16: _Row("bfloat16", "bfloat16", 16, "BF16", 16, True),
    DType.FP8_E4M3: _Row("float8_e4m3fn", "float8_e4m3fn", 17, "FP8", 8, True),
    DType.INT64: _Row("int64", "int64", 7, "INT64", 64),
    DType.INT32: _Row("int32", "int32", 6, "INT32", 32),
    DType.INT8: _Row("int8", "int8", 3, "INT8", 8),
    DType.UINT8: _Row("uint8", "uint8", 2, "UINT8", 8),
    DType.BOOL: _Row("bool", "bool", 9, "BOOL", 8),
}
assert set(_TABLE) == set(DType)


def dtype_from_name(name: str) -> DType:
    """Look a type up by our name; UsageError lists the names."""
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise UsageError(f"dtype {name!r}", found="no such type", fix=f"Known: {known}") from None


def dtype_from_onnx(number: int) -> DType:
    """Look a type up by its TensorProto.DataType number; UsageError where we have none."""
    for dtype, row in _TABLE.items():
        if row.onnx == number:
            return dtype
    known = ", ".join(f"{row.onnx} ({dtype.value})" for dtype, row in _TABLE.items())
    raise UsageError(f"ONNX element type {number}", found="not supported", fix=f"Known: {known}")


def dtype_from_torch(dtype: "torch.dtype") -> DType:
    """Look a type up by torch's; UsageError where we have none."""
    name = str(dtype).removeprefix("torch.")
    for ours, row in _TABLE.items():
        if row.torch_name == name:
            return ours
    raise UsageError(f"torch dtype {dtype}", found="not supported", fix="Use a type of core.dtypes")
