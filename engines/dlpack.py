"""DLPack: tensors of any library in and out without a copy, by the protocol's structures alone.

read(tensor, stream) -> Imported (address, shape, strides, dtype, device); export(...) -> a capsule for `__dlpack__`
Both layouts of the protocol: versioned (1.x) and the one before it. Structures: dmlc/dlpack, include/dlpack/dlpack.h.
"""

import ctypes
import weakref
from dataclasses import dataclass, field
from typing import Any

from ..core.dtypes import DType
from ..core.errors import UsageError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
VERSION = (1, 0)

# DLDataTypeCode and bits of each type.
CODES: dict[DType, tuple[int, int]] = {
    DType.FP64: (2, 64),
    DType.FP32: (2, 32),
    DType.FP16: (2, 16),
    DType.BF16: (4, 16),
    DType.FP8_E4M3: (10, 8),
    DType.INT64: (0, 64),
    DType.INT32: (0, 32),
    DType.INT8: (0, 8),
    DType.UINT8: (1, 8),
    DType.BOOL: (6, 8),
}
_TYPES = {code: dtype for dtype, code in CODES.items()}

# Capsule names; module constants, since a capsule keeps only the pointer.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_LAYOUTS: dict[bytes, type[Any]] = {_PLAIN: _Managed, _VERSIONED: _ManagedVersioned}

_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
# The same on a capsule that is being destroyed: by address, so that nothing counts a reference to it.
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


@dataclass(eq=False)
class Imported:
    """A tensor of someone else. The producer's memory is released when this object goes.

    strides: in elements, None for row-major. dtype: None where we have no such type; type_name then says which it is.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType | None
    device: tuple[int, int]
    read_only: bool
    type_name: str = field(default="")


def read(tensor: Any, stream: int | None = None) -> Imported:
    """Import an object with `__dlpack__`; stream: the CUDA stream that will read it, for the producer to make it wait.

    Raises UsageError where the producer refuses, or speaks a later major version of the protocol.
    """
    arguments: dict[str, Any] = {} if stream is None else {"stream": stream}
    kind = type(tensor).__name__
    try:
        try:
            capsule = tensor.__dlpack__(**arguments, max_version=VERSION)
        except TypeError:  # a producer from before version 1 knows no max_version
            capsule = tensor.__dlpack__(**arguments)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise UsageError(
            f"a {kind} through DLPack", found=f"it refuses: {' '.join(str(error).split())}"
        ) from None
    name = next((n for n in _LAYOUTS if _is_valid(capsule, n)), None)
    if name is None:
        raise UsageError(f"a {kind} through DLPack", found="its capsule was used before")
    address = _pointer(capsule, name)
    managed = _LAYOUTS[name].from_address(address)
    _rename(capsule, _USED[name])
    imported = _imported(managed, name == _VERSIONED)
    if managed.deleter:
        weakref.finalize(imported, _Deleter(managed.deleter), address)
    if name == _VERSIONED and managed.major != VERSION[0]:
        raise UsageError(
            f"a {kind} through DLPack",
            found=f"version {managed.major}.{managed.minor} of the protocol",
            fix=f"Version {VERSION[0]}.x is read",
        )
    return imported


def export(
    address: int, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], keep: object
) -> Any:
    """A capsule (unversioned, which every consumer reads) over row-major memory; `keep` lives as long as its consumer."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    code, bits = CODES[dtype]
    managed = _Managed(
        _Tensor(address, *device, len(shape), code, bits, 1, sizes, None, 0),
        None,
        ctypes.cast(_DELETER, ctypes.c_void_p).value,
    )
    where = ctypes.addressof(managed)
    _EXPORTS[where] = (managed, sizes, keep)
    return _new(where, _PLAIN, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p).value)


def check_request(device: tuple[int, int], how: dict[str, Any]) -> None:
    """Raise BufferError, as the protocol has it, where a consumer asks for a copy or another device."""
    if how.get("copy"):
        raise BufferError("the memory is handed on as it is: copy it afterwards")
    if how.get("dl_device") not in (None, device):
        raise BufferError(f"the memory is on DLPack device {device}")


def _imported(managed: Any, versioned: bool) -> Imported:
    tensor = managed.tensor
    rank = tensor.ndim
    strides = tuple(tensor.strides[:rank]) if tensor.strides and rank else None
    code = (tensor.code, tensor.bits)
    return Imported(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[:rank]) if rank else (),
        strides=strides,
        dtype=_TYPES.get(code) if tensor.lanes == 1 else None,
        device=(tensor.device_type, tensor.device_id),
        read_only=versioned and bool(managed.flags & READ_ONLY),
        type_name=f"DLPack type {code[0]} of {code[1]} bits",
    )


_EXPORTS: dict[int, tuple[object, ...]] = {}  # what a consumer may still read, by its structure


def _delete(address: int, exports: dict[int, tuple[object, ...]] = _EXPORTS) -> None:
    exports.pop(address, None)


def _destroy(capsule: int) -> None:
    if _is_valid_at(capsule, _PLAIN):  # nobody consumed it
        _delete(_pointer_at(capsule, _PLAIN))


_DELETER, _DESTRUCTOR = _Deleter(_delete), _Deleter(_destroy)
for _thunk in (_DELETER, _DESTRUCTOR):  # a consumer may call them after this module is gone
    _api.Py_IncRef(ctypes.py_object(_thunk))
