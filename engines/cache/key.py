"""What an engine is made from, as named parts: two builds with equal parts may share one engine.

graph and weights (SHA-256), profiles, options, runtime with version, architecture -> Key -> hex digest
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ...graph.stored_tensors import stored_tensors

SCHEME = "1"  # raise it when tensorrt_build asks TensorRT for something else than before
CONTENTS = ("graph", "weights")  # the parts that only the graph tells
CHUNK = 1 << 20
SHOWN = 4  # differences named in an explanation
SHORT = 12  # characters of a hash that tell it from another


@dataclass(frozen=True, slots=True)
class Key:
    """Part -> its value, e.g. `option.tf32` -> `false`."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The name of the entry: hex SHA-256 over the parts."""
        return hashlib.sha256(json.dumps(dict(self.parts), sort_keys=True).encode()).hexdigest()

    def differences(self, other: Mapping[str, str]) -> list[str]:
        """What is not as in `other`, one phrase a part."""
        return [
            f"{name} ({_short(other.get(name))} there, {_short(self.parts.get(name))} here)"
            for name in sorted(self.parts.keys() | other.keys())
            if self.parts.get(name) != other.get(name)
        ]

    def explain(self, others: Iterable[tuple[str, Mapping[str, str]]]) -> str:
        """Why none of the entries (digest, parts; the latest first) serves: how the nearest differs."""
        found = [(self.differences(parts), digest) for digest, parts in others]
        if not found:
            return "the cache is empty"
        differences, digest = min(found, key=lambda each: len(each[0]))
        more = len(differences) - SHOWN
        return f"the nearest entry {digest[:SHORT]} differs in {', '.join(differences[:SHOWN])}" + (
            f" and {more} more" if more > 0 else ""
        )


def key_of(graph: bytes, folder: Path, settled: Mapping[str, str]) -> Key:
    """The key of a build.

    graph: the ONNX bytes that the builder reads; folder: where their external data lies, which is read as a whole.
    settled: the other parts. Raises OSError when the weights cannot be read.
    """
    contents = (hashlib.sha256(graph).hexdigest(), _weights(graph, folder))
    return Key({**settled, **dict(zip(CONTENTS, contents, strict=True))})


def settled_parts(*, runtime: str, architectures: Iterable[str], **groups: Any) -> dict[str, str]:
    """The parts that do not depend on the graph.

    runtime: product and version. groups: further parts by group, each a mapping of plain values, e.g. options={...}.
    """
    parts = {"scheme": SCHEME, "runtime": runtime, "architectures": ",".join(architectures)}
    for group, values in groups.items():
        parts |= {f"{group}.{name}": json.dumps(value) for name, value in values.items()}
    return parts


def _weights(graph: bytes, folder: Path) -> str:
    """SHA-256 over the external data of every tensor in the graph's order, each with its length first."""
    digest = hashlib.sha256()
    proto = onnx.ModelProto.FromString(graph)
    for _, tensor in stored_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue  # its bytes are in the graph
        where = {entry.key: entry.value for entry in tensor.external_data}
        path, start = folder / where["location"], int(where.get("offset", 0))
        left = int(where.get("length", path.stat().st_size - start))
        digest.update(left.to_bytes(8, "little"))
        with path.open("rb") as file:
            file.seek(start)
            while left and (chunk := file.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest()


def _short(value: str | None) -> str:
    """A value as an explanation shows it."""
    if value is None:
        return "none"
    return value[:SHORT] if len(value) == 64 and value.isalnum() else value
