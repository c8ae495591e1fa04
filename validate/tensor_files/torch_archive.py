"""One tensor as torch.save writes it, read without unpickling: Polygraphy keeps bf16 and fp8 this way.

The archive's pickle is disassembled, never run: a handful of opcodes may push text, numbers and tuples, and
the one call that they may spell is torch's `_rebuild_tensor`. Everything else is refused.
"""

import io
import math
import pickletools
import zipfile
import zlib
from typing import Any

import ml_dtypes
import numpy as np

from ...core.errors import ArtefactError
from .numbers import checked

STORAGES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
UNTYPED = {  # the types whose storage holds bytes, named beside it
    "torch float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "torch float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "torch uint16": np.dtype(np.uint16),
    "torch uint32": np.dtype(np.uint32),
    "torch uint64": np.dtype(np.uint64),
}
TYPED_CALL = "torch._utils _rebuild_tensor_v2"
UNTYPED_CALL = "torch._utils _rebuild_tensor_v3"
PUSHED = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "GLOBAL")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def array_from_torch(data: bytes, asked: str) -> np.ndarray:
    """The tensor that torch.save wrote to `data`; ArtefactError for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
        function, arguments = _disassemble(parts["data.pkl"])
        if function not in (TYPED_CALL, UNTYPED_CALL):
            raise ValueError(f"it calls {function}")
        storage, offset, shape, strides = arguments[:4]
        _, kind, key, _, _ = storage
        if function == TYPED_CALL:
            dtype = STORAGES[kind.removeprefix("torch ")]
        else:
            dtype = UNTYPED[arguments[6]]
        if parts.get("byteorder", b"little") != b"little":
            raise ValueError("it is not little-endian")
        bits = np.frombuffer(parts[f"data/{key}"], f"u{dtype.itemsize}")  # numpy strides no fp8
        array = np.array(_strided(bits, offset, shape, strides), order="C")
        return checked(array.view(dtype), asked)
    except (
        *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError),
        *(ValueError, TypeError, KeyError, IndexError, AttributeError),
    ) as error:
        found = f"it is no tensor that torch.save wrote ({error.__class__.__name__}: {error})"
        raise ArtefactError(asked, found=found) from None


def torch_from_array(array: np.ndarray) -> bytes:
    """What torch.save writes for the array."""
    import torch

    tensor = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    if array.size:
        flat = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
        tensor = flat.view(tensor.dtype).reshape(array.shape)
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()


def _strided(
    flat: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """A view of `flat`, after a check that every element lies in it."""
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"shape {shape}, strides {strides}, offset {offset}")
    if not math.prod(shape):
        return np.empty(shape, flat.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if last >= len(flat):
        raise ValueError(f"element {last} of {len(flat)}")
    steps = [step * flat.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps)


def _disassemble(program: bytes) -> tuple[str, tuple[Any, ...]]:
    """The call that the pickle spells: the function's name and its arguments."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(program):
        name = opcode.name
        if name in PUSHED:
            stack.append(argument)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            start = len(stack) - 1 - next(i for i, v in enumerate(reversed(stack)) if v is _MARK)
            stack[start:] = [tuple(stack[start + 1 :])]
        elif name in TUPLES:
            start = len(stack) - TUPLES[name]
            stack[start:] = [tuple(stack[start:])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("NEWFALSE", "NEWTRUE"):
            stack.append(name == "NEWTRUE")
        elif name == "REDUCE":
            arguments = stack.pop()
            stack[-1] = (stack[-1], arguments)
        elif name not in ("PROTO", "BINPERSID", "STOP"):  # BINPERSID: the storage stays as it is
            raise ValueError(f"it uses opcode {name}")
    (function, arguments) = stack.pop()
    return function, arguments
