"""The KServe v2 inference protocol over HTTP: JSON bodies, and Triton's binary tensor extension.

    body (+ Inference-Header-Content-Length) -> Request -> feeds ... outputs -> body (+ the same header)

Open Inference Protocol, inference_rest.md; Triton, extension_binary_data.md. Nothing is converted without being asked: a
number that the declared type does not hold is an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from .triton_warmup import little_endian
from .wire_types import dtype_of_wire, wire_name

HEADER_LENGTH = "inference-header-content-length"
KINDS: dict[str, set[type]] = {
    "f": {float, int},
    "V": {float, int},
    "i": {int},
    "u": {int},
    "b": {bool},
}  # of a type -> what json.loads makes of the values that it may hold
JSON_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "a text",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks: its own id, the inputs, and the outputs that it wants (name -> as binary?), None for all."""

    id: str | None
    feeds: dict[str, np.ndarray]
    wanted: dict[str, bool] | None
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, headers, body."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def json_answer(status: int, body: Mapping[str, Any]) -> Answer:
    """An answer that is one JSON object."""
    return Answer(status, json.dumps(body).encode())


def read_request(body: bytes, header_length: str | None) -> Request:
    """Read an inference request; UsageError says what in it does not fit. Whether the model takes it is not looked at."""
    binary = b""
    if header_length is not None:
        size = int(header_length) if header_length.isdecimal() else -1
        if not 0 <= size <= len(body):
            raise UsageError(
                f"{HEADER_LENGTH}: {header_length}",
                found=f"the body has {len(body)} bytes",
                fix="Give the length of the JSON part",
            )
        body, binary = body[:size], body[size:]
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError("inference request", found=f"no JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), list):
        raise UsageError(
            "inference request", found="no list of inputs", fix='Give {"inputs": [...]}'
        )
    feeds = {}
    for entry in request["inputs"]:
        name, array, used = _read_input(entry, binary)
        if name in feeds:
            raise UsageError(f"input {name!r}", found="it is given twice")
        feeds[name], binary = array, binary[used:]
    if binary:
        raise UsageError("inference request", found=f"{len(binary)} bytes that no input names")
    identity = request.get("id")
    parameters = _parameters(request, "inference request")
    return Request(
        None if identity is None else str(identity),
        feeds,
        _read_wanted(request.get("outputs"), bool(parameters.get("binary_data_output"))),
        bool(parameters.get("binary_data_output")),
    )


def write_answer(
    request: Request,
    model: str,
    version: str,
    records: Sequence[TensorRecord],
    outputs: Mapping[str, np.ndarray],
) -> Answer:
    """The answer to `request`; UsageError for an unknown output, and for NaN or infinities in JSON, which has none."""
    wanted = request.wanted
    if wanted is None:
        wanted = {record.name: request.binary for record in records}
    known = {record.name: record for record in records}
    head: list[dict[str, Any]] = []
    tail = []
    for name, binary in wanted.items():
        if name not in known:
            raise UsageError(
                f"output {name!r}",
                found="no such output",
                fix=f"The outputs are {', '.join(known)}",
            )
        array = np.ascontiguousarray(outputs[name])
        entry: dict[str, Any] = {
            "name": name,
            "datatype": wire_name(known[name]),
            "shape": list(outputs[name].shape),
        }
        if binary:
            tail.append(little_endian(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = _json_numbers(name, array, dtype_from_name(known[name].dtype))
        head.append(entry)
    body = {"model_name": model, "model_version": version, "outputs": head}
    if request.id is not None:
        body["id"] = request.id
    text = json.dumps(body).encode()
    if not tail:
        return Answer(200, text)
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return Answer(200, b"".join((text, *tail)), headers)


def _read_input(entry: Any, binary: bytes) -> tuple[str, np.ndarray, int]:
    """Name, array and how many bytes of the binary part it took."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UsageError("inference request", found="an input without a name")
    name, shape = entry["name"], entry.get("shape")
    asked = f"input {name!r}"
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise UsageError(asked, found=f"shape {shape!r}", fix="Give a list of sizes")
    dtype = dtype_of_wire(entry.get("datatype"))
    parameters = _parameters(entry, asked)
    size = parameters.get("binary_data_size")
    count = 1
    for length in shape:
        count *= length
    if size is None:
        return name, _from_json(asked, entry.get("data"), dtype, count).reshape(shape), 0
    if "data" in entry or size != count * dtype.itemsize or size > len(binary):
        found = (
            "both data and binary_data_size"
            if "data" in entry
            else f"{size} bytes of {len(binary)} left"
        )
        needs = f"{'x'.join(map(str, shape)) or 'a scalar'} of {entry['datatype']} takes {count * dtype.itemsize}"
        raise UsageError(asked, found=found, fix=needs)
    little = np.frombuffer(binary[:size], np.dtype(f"<u{dtype.itemsize}"))
    native = little.astype(little.dtype.newbyteorder("="))
    if dtype is DType.BOOL and (native > 1).any():
        raise UsageError(asked, found="a BOOL that is neither 0 nor 1")
    return name, native.view(dtype.numpy).reshape(shape), size


def _from_json(asked: str, data: Any, dtype: DType, count: int) -> np.ndarray:
    """The flat or nested list as one flat array of `dtype`, with every number kept."""
    given = np.asarray(data if isinstance(data, list) else [], object).reshape(-1)
    types = set(map(type, given))
    if list in types or given.size != count:
        found = "lists of unequal lengths" if list in types else f"{given.size} numbers"
        raise UsageError(asked, found=found, fix=f"Its shape asks for {count}")
    target = dtype.numpy
    if not count:
        return np.empty(0, target)
    if wrong := types - KINDS[target.kind]:
        names = sorted(JSON_NAMES.get(kind, kind.__name__) for kind in wrong)
        raise UsageError(asked, found=f"{names[0]} in the data", fix=f"Give {WORDS[target.kind]}")
    array = _held(given, target)
    if array is None:
        raise UsageError(
            asked, found=f"a number beyond {dtype.value}", fix="Give numbers that it holds"
        )
    return array


def _held(given: np.ndarray, target: np.dtype) -> np.ndarray | None:
    """Python's numbers as an array of `target`; None where it does not hold one of them."""
    if target.kind == "b":
        return given.astype(target)
    if target.kind in "iu":
        limits = np.iinfo(target)
        fits = limits.min <= given.min() and given.max() <= limits.max
        return given.astype(target) if fits else None
    try:
        wide = given.astype(np.float64)
    except OverflowError:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        array = wide.astype(target)
    kept = (np.isfinite(array.astype(np.float64)) == np.isfinite(wide)).all()
    return array if kept else None


WORDS = {
    "f": "numbers",
    "V": "numbers",
    "i": "whole numbers",
    "u": "whole numbers",
    "b": "true and false",
}


def _json_numbers(name: str, array: np.ndarray, dtype: DType) -> list[Any]:
    flat = array.reshape(-1)
    if dtype.floating:
        flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            raise UsageError(
                f"output {name!r} as JSON",
                found="it holds NaN or infinities, and JSON has neither",
                fix="Ask for it as binary data",
            )
    numbers: list[Any] = flat.tolist()
    return numbers


def _read_wanted(outputs: Any, binary: bool) -> dict[str, bool] | None:
    if outputs is None or outputs == []:
        return None
    wanted = {}
    for entry in outputs if isinstance(outputs, list) else [None]:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UsageError("inference request", found="an output without a name")
        parameters = _parameters(entry, f"output {entry['name']!r}")
        wanted[entry["name"]] = bool(parameters.get("binary_data", binary))
    return wanted


UNSUPPORTED = ("shared_memory_region", "classification", "sequence_id")


def _parameters(entry: Mapping[str, Any], asked: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise UsageError(asked, found="parameters that are no object")
    for name in UNSUPPORTED:
        if name in parameters:
            raise UsageError(
                asked, found=f"the parameter {name}", fix="This server does not have it"
            )
    return parameters
