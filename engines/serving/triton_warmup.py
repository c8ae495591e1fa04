"""Warm-up requests of a Triton model, from the bundle's golden inputs: one entry of the configuration and raw files.

Triton reads <model>/warmup/<file> as the elements of one request, little endian, rows last axis fastest. A batched model gets
one row, which Triton repeats `batch_size` times (core/src/backend_model_instance.cc, GenerateWarmupData). Of several profiles
it takes the one whose usual sizes are nearest to the request's, so each gets a request of just these sizes.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.manifest import TensorRecord
from ...core.shapes import Profile, Shape
from .batching import Batching
from .golden import Sample
from .pbtxt import Word
from .wire_types import wire_name

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One `model_warmup` entry and the files that it names."""

    entry: dict[str, Any]
    files: dict[str, bytes]


def warm_ups(
    samples: Sequence[Sample],
    inputs: Sequence[TensorRecord],
    batching: Batching,
    profiles: Sequence[Profile],
) -> tuple[WarmUp, ...]:
    """One warm-up for each set of sizes among the golden inputs that the model can take, and for each profile's usual sizes.

    One profile alone is warmed up by any of the golden inputs. Without golden inputs there are none.
    """
    made: dict[tuple[Shape, ...], WarmUp] = {}
    several = profiles if len(profiles) > 1 else ()
    for name, feeds in _requests(samples, inputs, batching.limit, several):
        shapes = tuple(feeds[record.name].shape for record in inputs)
        if shapes in made or (batching.limit and any(s[0] > batching.limit for s in shapes)):
            continue
        made[shapes] = _warm_up(len(made), name, feeds, inputs, batched=batching.limit > 0)
    return tuple(made.values())


def _requests(
    samples: Sequence[Sample],
    inputs: Sequence[TensorRecord],
    limit: int,
    profiles: Iterable[Profile],
) -> Iterator[tuple[str, Feeds]]:
    """Names and inputs: the golden cases', then the first of them repeated or cut to the usual sizes of each profile.

    limit: rows that the model takes, 0 where its requests have no batch. A profile for more rows only gets none.
    """
    given = [(sample.name, sample.feeds_for(inputs)) for sample in samples]
    yield from given
    for number, profile in enumerate(profiles if given else ()):
        first, shapes = given[0][1], {name: sizes.opt for name, sizes in profile.items()}
        if limit:
            rows = min(limit, shapes[inputs[0].name][0])
            if rows < profile[inputs[0].name].min[0]:
                continue
            shapes = {name: (rows, *shape[1:]) for name, shape in shapes.items()}
        yield f"profile {number}", {name: _sized(first[name], shapes[name]) for name in first}


def _sized(array: np.ndarray, shape: Shape) -> np.ndarray:
    """`array` with other sizes: its own elements, along each axis from the start again where it ends."""
    if not array.shape:
        return array
    return np.ascontiguousarray(
        array[np.ix_(*(np.arange(n) % size for n, size in zip(shape, array.shape, strict=True)))]
    )


def _warm_up(
    number: int,
    name: str,
    feeds: Feeds,
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
