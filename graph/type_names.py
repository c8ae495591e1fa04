"""ONNX's element types and how messages spell them; needs no torch."""

import onnx_ir as ir

DataType = ir.DataType

_NAMES = {
    DataType.DOUBLE: "fp64",
    DataType.FLOAT: "fp32",
    DataType.FLOAT16: "fp16",
    DataType.BFLOAT16: "bf16",
    DataType.FLOAT8E4M3FN: "fp8_e4m3",
}


def type_name(dtype: DataType | None) -> str:
    """A type as messages spell it: fp16, int64, ..."""
    return "unknown" if dtype is None else _NAMES.get(dtype, dtype.name.lower())
