"""Memory that a caller hands over, as one kind of thing: an address, a shape, an element type, host or GPU.

numpy, DLPack, `__cuda_array_interface__`, Pointer, or whatever numpy makes an array of -> View
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.dtypes import DType, dtype_from_name
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from . import dlpack

_TYPES = {dtype.numpy: dtype for dtype in DType}
ON_HOST = (dlpack.CPU, dlpack.CUDA_HOST)
ALIGNMENT = 256  # of every address that TensorRT is given (IExecutionContext::setTensorAddress)
LEGACY = 1  # how DLPack and the CUDA array interface name CUDA's default stream


@dataclass(frozen=True, slots=True)
class Pointer:
    """Row-major memory by its address: of the GPU for a TensorRT session, of the host for ONNX Runtime.

    dtype: as manifests spell it, e.g. bf16. Whoever gives it keeps the memory alive, and ready on the stream it is used on.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session's tensors may lie. ordinal: the CUDA device, None where it takes host memory only."""

    target: str
    ordinal: int | None = None


@dataclass(slots=True)
class View:
    """Row-major memory of `shape`; it stays alive as long as the view does.

    array: the same memory in the host, None on the GPU. after: a CUDA stream that must be done with it first.
    """

    address: int
    shape: tuple[int, ...]
    dtype: DType
    array: np.ndarray | None = None
    owner: object = None
    writable: bool = True
    after: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def view_of(
    value: Any,
    record: TensorRecord,
    place: Place,
    *,
    stream: int | None = None,
    output: bool = False,
) -> View:
    """The memory of `value`; host memory that is not row-major is copied, unless it is an output.

    stream: the CUDA stream that will use it, which a producer that knows how makes wait. Raises UsageError for elements
    of another type, memory of another device, strides or an unaligned address on the GPU, and an output that cannot be
    written in place.
    """
    asked = f"{'output' if output else 'input'} {record.name!r}"
    if isinstance(value, Pointer):
        view = _of_pointer(value, place)
    elif isinstance(value, np.ndarray | np.generic):
        view = _of_array(np.asarray(value), value, record, asked, output)
    elif hasattr(value, "__dlpack__"):
        view = _of_dlpack(value, record, place, asked, stream, output)
    elif hasattr(value, "__cuda_array_interface__"):
        view = _of_cuda_array(value, record, place, asked)
    elif output:
        raise UsageError(
            asked,
            found=f"a {type(value).__name__}, whose memory cannot be written",
            fix="Give an array, a tensor with DLPack, or a Pointer",
        )
    else:
        view = _of_array(np.asarray(value), value, record, asked, output)
    if view.dtype.value != record.dtype:
        raise _wrong_type(record, asked, str(view.dtype.numpy))
    if view.array is None and view.address % ALIGNMENT:
        raise UsageError(
            asked,
            found=f"GPU memory at {view.address:#x}, and TensorRT takes multiples of {ALIGNMENT} bytes",
            fix="Copy it into an allocation of its own: it is a part of another tensor",
        )
    if output and not view.writable:
        raise UsageError(asked, found="read-only memory", fix="Give memory that can be written")
    return view


def array_at(address: int, shape: tuple[int, ...], dtype: DType, owner: object) -> np.ndarray:
    """Host memory as an array, which keeps `owner` alive."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype.numpy)
    buffer = (ctypes.c_char * size).from_address(address)
    buffer.owner = owner  # type: ignore[attr-defined]
    array: np.ndarray = np.ndarray(shape, dtype.numpy, buffer=memoryview(buffer))
    return array


def _of_pointer(value: Pointer, place: Place) -> View:
    dtype, shape = dtype_from_name(value.dtype), tuple(value.shape)
    array = None
    if place.ordinal is None:
        array = array_at(value.address, shape, dtype, value)
    return View(value.address, shape, dtype, array, value)


def _of_array(
    array: np.ndarray, owner: object, record: TensorRecord, asked: str, output: bool
) -> View:
    dtype = _TYPES.get(array.dtype)
    if dtype is None:
        raise _wrong_type(record, asked, str(array.dtype))
    if not array.flags.c_contiguous:
        if output:
            raise _strided(asked)
        array = np.ascontiguousarray(array).reshape(array.shape)
    writable = array.flags.writeable
    return View(array.ctypes.data, array.shape, dtype, array, owner, writable)


def _of_dlpack(
    value: Any, record: TensorRecord, place: Place, asked: str, stream: int | None, output: bool
) -> View:
    try:
        kind, ordinal = value.__dlpack_device__()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(asked, found=f"no memory to read: {words}", fix=_takes(place)) from None
    if kind in ON_HOST:
        found = dlpack.read(value)
        dtype = _known(found, record, asked)
        if found.strides is None or _row_major(found.shape, found.strides):
            array = array_at(found.address, found.shape, dtype, found)
            return View(found.address, found.shape, dtype, array, found, not found.read_only)
        if output or min(found.strides) < 0:
            raise _strided(asked)
        array = np.ascontiguousarray(_strided_array(found, dtype))
        return View(array.ctypes.data, array.shape, dtype, array, array)
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise UsageError(asked, found=f"memory of DLPack device {kind}", fix=_takes(place))
    _check_device(int(ordinal), place, asked)
    found = dlpack.read(value, stream or LEGACY)
    dtype = _known(found, record, asked)
    if found.strides is not None and not _row_major(found.shape, found.strides):
        raise _strided(asked)
    return View(found.address, found.shape, dtype, None, found, not found.read_only)


def _of_cuda_array(value: Any, record: TensorRecord, place: Place, asked: str) -> View:
    about = value.__cuda_array_interface__
    _check_device(place.ordinal, place, asked)
    shape = tuple(about["shape"])
    dtype = _TYPES.get(np.dtype(about["typestr"]))
    if dtype is None:
        raise _wrong_type(record, asked, str(about["typestr"]))
    strides = about.get("strides")
    if strides is not None:
        strides = tuple(s // dtype.itemsize for s in strides)
        if not _row_major(shape, strides):
            raise _strided(asked)
    address, read_only = about["data"]
    return View(address, shape, dtype, None, value, not read_only, about.get("stream"))


def _known(found: dlpack.Imported, record: TensorRecord, asked: str) -> DType:
    if found.dtype is None:
        raise _wrong_type(record, asked, found.type_name)
    return found.dtype


def _check_device(ordinal: int | None, place: Place, asked: str) -> None:
    if place.ordinal is None:
        raise UsageError(asked, found="memory of a GPU", fix=_takes(place))
    if ordinal != place.ordinal:
        raise UsageError(asked, found=f"memory of GPU {ordinal}", fix=_takes(place))


def _takes(place: Place) -> str:
    if place.ordinal is None:
        return f"{place.target} takes host memory: copy it there"
    return f"The session runs on GPU {place.ordinal}: give memory of that GPU or of the host"


def _row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return math.prod(shape) == 0
        expected *= size
    return True


def _strided_array(found: dlpack.Imported, dtype: DType) -> np.ndarray:
    """Host memory with the producer's strides, none of them negative."""
    strides = found.strides or ()
    reach = 1 + sum((size - 1) * step for size, step in zip(found.shape, strides, strict=True))
    flat = array_at(found.address, (reach,), dtype, found)
    step = dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, found.shape, tuple(s * step for s in strides))


def _strided(asked: str) -> UsageError:
    return UsageError(
        asked,
        found="memory that is not row-major",
        fix="Make it contiguous: nothing is copied here",
    )


def _wrong_type(record: TensorRecord, asked: str, found: str) -> UsageError:
    expected = dtype_from_name(record.dtype).numpy
    return UsageError(
        asked,
        found=f"{found} elements",
        fix=f"Give {expected}: nothing is converted without being asked",
    )
