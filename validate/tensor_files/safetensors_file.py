""".safetensors with numpy alone, bf16 and fp8 too (the library reads those only into torch).

    u64 length of the header | header, JSON {name: {dtype, shape, data_offsets}} | bytes

Tensors lie the widest type first, then by name, without a gap, so that each is aligned.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ArtefactError, UsageError
from .numbers import NAMES, SAFETENSORS, unique

MAX_HEADER = 100_000_000  # bytes; the library's own limit
METADATA = "__metadata__"


def load_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of the file; ArtefactError for a damaged one or a type that is not known."""
    asked = f"tensors in {path}"
    with path.open("rb") as file:
        total = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if total < 8 or length > min(MAX_HEADER, total - 8):
            found = f"{total} bytes hold no whole header"
            raise ArtefactError(asked, found=found, fix="The file was cut short: save it again")
        entries = _header(file.read(length), asked)
        tensors, end = {}, 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
            dtype, shape, start, stop = entry
            if start != end or stop - start != math.prod(shape) * dtype.itemsize:
                raise ArtefactError(
                    asked, found=f"{name!r} lies at {start} to {stop}: a gap, or another size"
                )
            if 8 + length + stop > total:
                found = f"{name!r} ends after the file does"
                raise ArtefactError(asked, found=found, fix="The file was cut short: save it again")
            array = np.empty(shape, dtype)
            file.readinto(array.reshape(-1).view(np.uint8).data)
            tensors[name], end = array, stop
        if 8 + length + end != total:
            raise ArtefactError(asked, found="bytes after the last tensor")
    return {name: tensors[name] for name in entries}


def safetensors_bytes(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The file that load_safetensors and the library read; UsageError for a name the format keeps for itself."""
    if METADATA in tensors:
        raise UsageError(f"save tensor {METADATA!r}", found="the format uses this name itself")
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.alignment, name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        array = tensors[name]
        span = [end, end := end + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": span}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        [len(text).to_bytes(8, "little"), text, *(tensors[name].tobytes() for name in order)]
    )


def _header(data: bytes, asked: str) -> dict[str, tuple[np.dtype, tuple[int, ...], int, int]]:
    """name -> (dtype, shape, start, stop), in the header's order."""
    try:
        header = json.loads(data, object_pairs_hook=lambda pairs: unique(pairs, asked))
        if not isinstance(header, dict):
            raise TypeError("it is no JSON object")
        header.pop(METADATA, None)
        entries = {}
        for name, entry in header.items():
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            numbers = (*shape, start, stop)
            if not all(type(n) is int and n >= 0 for n in numbers):
                raise ValueError(f"sizes of {name!r} are no whole numbers")
            if entry["dtype"] not in SAFETENSORS:
                found, known = f"{name!r} has type {entry['dtype']}", ", ".join(SAFETENSORS)
                raise ArtefactError(asked, found=found, fix=f"Known: {known}")
            entries[name] = (SAFETENSORS[entry["dtype"]], shape, start, stop)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        found = f"its header cannot be read ({error.__class__.__name__}: {error})"
        raise ArtefactError(asked, found=found, fix="Save it again") from None
    return entries
