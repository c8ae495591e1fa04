"""What a tensor in a file may hold: numbers of a known type, in native byte order, row-major."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from ...core.errors import ArtefactError

# One table of names: safetensors' beside numpy's.
SAFETENSORS: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
NAMES = {dtype: name for name, dtype in SAFETENSORS.items()}
# Types that numpy itself cannot name in a file: there they become raw bytes, and are lost.
FOREIGN = tuple(SAFETENSORS[name] for name in ("BF16", "F8_E4M3", "F8_E5M2"))


def checked(array: np.ndarray, asked: str) -> np.ndarray:
    """The array in native byte order and row-major, writable and its own; ArtefactError for anything but numbers."""
    if array.dtype.hasobject:
        found = "Python objects, which cannot be read safely"
        raise ArtefactError(asked, found=found, fix="Save arrays of numbers")
    if array.dtype in FOREIGN:
        return np.array(array, order="C")
    if array.dtype.kind == "V":
        found = f"raw bytes ({array.dtype}): numpy wrote bf16 or fp8 without its type"
        raise ArtefactError(asked, found=found, fix="Save it as .safetensors, or as float32")
    native = array.dtype.newbyteorder("=")
    if native not in NAMES:
        raise ArtefactError(asked, found=f"elements of type {array.dtype}", fix="Save numbers")
    return np.array(array, dtype=native, order="C")


def unique(pairs: Iterable[tuple[str, Any]], asked: str) -> dict[str, Any]:
    """The pairs as a dictionary; ArtefactError for an empty name or one that comes twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not name:
            raise ArtefactError(asked, found="a tensor without a name")
        if name in found:
            raise ArtefactError(asked, found=f"two entries named {name!r}")
        found[name] = value
    return found
