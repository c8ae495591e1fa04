"""Element types as inference servers name them: one table, and which of Triton's backends takes which.

    "fp16" -> FP16 in the KServe v2 protocol -> TYPE_FP16 in Triton's model configuration

Triton's documentation, Model Configuration, Datatypes.
"""

from collections.abc import Iterable

from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import TensorRecord

WIRE: dict[DType, str] = {
    DType.FP64: "FP64",
    DType.FP32: "FP32",
    DType.FP16: "FP16",
    DType.BF16: "BF16",  # Triton's extension; the protocol itself stops at FP16
    DType.INT64: "INT64",
    DType.INT32: "INT32",
    DType.INT8: "INT8",
    DType.UINT8: "UINT8",
    DType.BOOL: "BOOL",
}
TRITON_BACKENDS: dict[str, frozenset[DType]] = {
    "onnxruntime": frozenset(WIRE) - {DType.BF16},
    "tensorrt": frozenset(WIRE) - {DType.FP64},
}
FIX = 'Set io = "fp32" in the recipe\'s [export] section and build again'


def wire_name(record: TensorRecord) -> str:
    """The protocol's name of a tensor's type; UsageError where it has none."""
    try:
        return WIRE[dtype_from_name(record.dtype)]
    except KeyError:
        raise UsageError(
            f"tensor {record.name!r} over HTTP",
            found=f"the KServe protocol has no type for {record.dtype}",
            fix=FIX,
        ) from None


def check_backend_types(tensors: Iterable[TensorRecord], backend: str) -> None:
    """Raise UsageError naming the first tensor whose type Triton's `backend` does not take."""
    for record in tensors:
        if dtype_from_name(record.dtype) not in TRITON_BACKENDS[backend]:
            raise UsageError(
                f"tensor {record.name!r} of a Triton model",
                found=f"Triton's {backend} backend has no type for {record.dtype}",
                fix=FIX,
            )


def dtype_of_wire(name: object) -> DType:
    """The type that the protocol calls `name`; UsageError lists the names."""
    for dtype, wire in WIRE.items():
        if wire == name:
            return dtype
    raise UsageError(
        f"datatype {name!r}", found="no such type", fix=f"Known: {', '.join(WIRE.values())}"
    )
