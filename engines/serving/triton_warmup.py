"""Warm-up requests of a Triton model, from the bundle's golden inputs: one entry of the configuration and raw files.

Triton reads <model>/warmup/<file> as the elements of one request, little endian, rows last axis fastest. A batched model gets
one row, which Triton repeats `batch_size` times (core/src/backend_model_instance.cc, GenerateWarmupData).
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.manifest import TensorRecord
from .batching import Batching
from .golden import Sample
from .pbtxt import Word
from .wire_types import wire_name


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One `model_warmup` entry and the files that it names."""

    entry: dict[str, Any]
    files: dict[str, bytes]


def warm_ups(
    samples: Iterable[Sample], inputs: Sequence[TensorRecord], batching: Batching
) -> tuple[WarmUp, ...]:
    """One warm-up for each set of sizes among the golden inputs that the model can take."""
    made: dict[tuple[Any, ...], WarmUp] = {}
    for sample in samples:
        feeds = sample.feeds_for(inputs)
        shapes = tuple(feeds[record.name].shape for record in inputs)
        if shapes in made or (batching.limit and any(s[0] > batching.limit for s in shapes)):
            continue
        made[shapes] = _warm_up(len(made), sample.name, feeds, inputs, batched=batching.limit > 0)
    return tuple(made.values())


def _warm_up(
    number: int,
    name: str,
    feeds: dict[str, np.ndarray],
    inputs: Sequence[TensorRecord],
    *,
    batched: bool,
) -> WarmUp:
    files, fields = {}, []
    for record in inputs:
        array = feeds[record.name]
        rows = array[0] if batched else array
        file = f"{number:02}-{_plain(name)}.{_plain(record.name)}"
        files[file] = little_endian(rows)
        value = {
            "data_type": Word(f"TYPE_{wire_name(record)}"),
            "dims": list(rows.shape) or [1],
            "input_data_file": file,
        }
        fields.append({"key": record.name, "value": value})
    batch = feeds[inputs[0].name].shape[0] if batched else 1
    return WarmUp({"name": name, "batch_size": batch, "inputs": fields}, files)


def little_endian(array: np.ndarray) -> bytes:
    """The elements' bytes, least significant first, the last axis fastest."""
    if sys.byteorder == "big" and array.itemsize > 1:
        array = array.byteswap()
    return array.tobytes()


def _plain(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "x"
