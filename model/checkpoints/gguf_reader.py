"""The header of a GGUF file: metadata and where each tensor lies (GGUF specification, versions 2 and 3).

    "GGUF" version:u32 tensors:u64 pairs:u64 | pairs: key type:u32 value | tensors: name rank:u32
    dims:u64* type:u32 offset:u64 | padding to `general.alignment` | data

Little-endian. Every length is checked against the file before it is believed.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ...core.errors import ArtefactError, UsageError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_RANK = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in the file; shape in torch's order, offset and size in bytes."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata as plain Python values, and the tensors in file order."""

    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]


class _Cursor:
    """Reads values one after the other; ArtefactError at the end of the file."""

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self.data, self.source, self.at = data, source, 0

    def take(self, code: str, count: int = 1) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        start = self._advance(count * struct.calcsize("<" + code))
        return struct.unpack_from(layout, self.data, start)

    def one(self, code: str) -> Any:
        return self.take(code)[0]

    def string(self) -> str:
        size = self.one("Q")
        start = self._advance(size)
        return self.data[start : start + size].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.one("I"), self.one("Q")
            if inner in _SCALARS:
                return list(self.take(_SCALARS[inner], count))
            if inner == _STRING:
                return [self.string() for _ in range(count)]
            kind = inner  # arrays of arrays are not used by any model
        if kind not in _SCALARS:
            raise ArtefactError(self.source, found=f"a metadata value of unknown type {kind}")
        return self.one(_SCALARS[kind])

    def _advance(self, size: int) -> int:
        start = self.at
        if size > len(self.data) - start:
            raise _truncated(self.source, "the header")
        self.at += size
        return start


def read_header(path: Path, source: str) -> Header:
    """Read the header of `path`; no tensor data is touched.

    Raises ArtefactError when the file is no GGUF, is truncated or contradicts itself, UsageError for a version or
    a quantisation type that is not supported.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ArtefactError(source, found="not a GGUF file: it does not start with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(_Cursor(data, source))
    except OSError as error:
        raise UsageError(source, found=f"cannot be read: {error.strerror}") from None


def _read(cursor: _Cursor) -> Header:
    cursor.take("4s")
    version, num_tensors, num_pairs = cursor.one("I"), cursor.one("Q"), cursor.one("Q")
    if version not in (2, 3):
        raise UsageError(cursor.source, found=f"GGUF version {version}", fix="Supported: 2 and 3")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.one("I"))
    entries = [_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ArtefactError(cursor.source, found=f"general.alignment {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = tuple(_place(cursor, *entry, start) for entry in entries)
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ArtefactError(cursor.source, found="two tensors of one name")
    return Header(metadata, tensors)


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type number and offset from the start of the data."""
    name, rank = cursor.string(), cursor.one("I")
    if not 1 <= rank <= _MAX_RANK:
        raise ArtefactError(cursor.source, found=f"{name} has {rank} dimensions")
    dims = cursor.take("Q", rank)
    return name, tuple(reversed(dims)), cursor.one("I"), cursor.one("Q")


def _place(
    cursor: _Cursor, name: str, shape: tuple[int, ...], number: int, offset: int, start: int
) -> StoredTensor:
    """Check one tensor against its type and the file."""
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise UsageError(
            f"{name} of {cursor.source}",
            found=f"quantisation type {number}",
            fix=f"Known: {', '.join(k.name for k in GGMLQuantizationType)}",
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ArtefactError(
            f"{name} of {cursor.source}",
            found=f"rows of {shape[-1]} values in {kind.name} blocks of {block}",
        )
    size = math.prod(shape) // block * block_bytes
    if start + offset + size > len(cursor.data):
        raise _truncated(cursor.source, name)
    return StoredTensor(name, shape, kind, start + offset, size)


def _truncated(source: str, what: str) -> ArtefactError:
    """The error for a file that ends before `what` does."""
    return ArtefactError(source, found=f"the file ends inside {what}", fix="Copy the file again")
