"""Inputs for both sides: from a file, from a bundle's golden file, or seeded by the signature."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Shape
from ..inputs import seeded_inputs
from .sides import Feeds, GraphSide, SavedSide, Side

SIZES = {"batch": 2, "sequence": 24}
OTHER_SIZE = 3
_MOVES = frozenset({"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten"})


def choose_feeds(
    sides: Sequence[Side],
    given: Mapping[str, torch.Tensor] | None,
    shapes: Mapping[str, Shape],
    seed: int,
) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs of the run, and where they come from.

    given: tensors of a file. shapes: of seeded inputs. Without either: the shortest golden case of a bundle, or
    inputs that a saved side holds. Raises UsageError for a missing or unknown input and for sides whose
    inputs differ in name.
    """
    running = [side for side in sides if not isinstance(side, SavedSide)]
    if not running:
        return {}, "saved values"
    records = {r.name: r for side in running for r in side.inputs}
    for side in running:
        if missing := sorted(records.keys() - {r.name for r in side.inputs}):
            raise UsageError(
                f"compare {running[0].label} with {running[-1].label}",
                found=f"{side.label} has no input {', '.join(missing)}",
                fix=f"Its inputs are {', '.join(r.name for r in side.inputs)}",
            )
    if given is not None:
        return _from_file(records, given), "a file"
    if not shapes:
        for side in sides:
            if isinstance(side, SavedSide) and records.keys() <= side.values.keys():
                return _typed(records, side.values), f"inputs saved in {side.label}"
        for side in running:
            golden = getattr(side, "golden", {})
            if golden:
                name = min(golden, key=lambda n: (_size(golden[n]) < 16, _size(golden[n])))
                return _typed(records, golden[name]), f"golden case {name!r}"
    if any(isinstance(side, SavedSide) for side in sides):
        raise UsageError(
            "inputs of the run whose values were saved",
            found="the file does not hold them",
            fix="Give them with --inputs",
        )
    return _seeded(running, list(records.values()), shapes, seed), f"seed {seed}"


def _size(feeds: Feeds) -> int:
    return max(
        (t.shape[-1] if t.ndim == 2 else t.shape[1] if t.ndim > 2 else 1) for t in feeds.values()
    )


def _from_file(
    records: Mapping[str, TensorRecord], given: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    if missing := sorted(records.keys() - given.keys()):
        raise UsageError(
            f"inputs {', '.join(missing)}",
            found=f"the file holds {', '.join(sorted(given)) or 'nothing'}",
            fix=f"Give {', '.join(records)}",
        )
    return _typed(records, given)


def _typed(
    records: Mapping[str, TensorRecord], given: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each in its declared type: float inputs of two graphs may differ in it."""
    return {n: given[n].to(dtype_from_name(r.dtype).torch) for n, r in records.items()}


def _seeded(
    sides: Sequence[Side], records: list[TensorRecord], shapes: Mapping[str, Shape], seed: int
) -> dict[str, torch.Tensor]:
    if unknown := sorted(shapes.keys() - {r.name for r in records}):
        raise UsageError(
            f"shape of {', '.join(unknown)}",
            found="no such input",
            fix=f"The inputs are {', '.join(r.name for r in records)}",
        )
    sizes = dict(SIZES)
    for record in records:
        shape = shapes.get(record.name, ())
        for dim, size in zip(record.dims, shape, strict=False):
            if isinstance(dim, str):
                sizes[dim] = size
        for dim in record.dims:
            if isinstance(dim, str):
                sizes.setdefault(dim, OTHER_SIZE)
    graphs = [side for side in sides if isinstance(side, GraphSide)]
    bounded = [_bounded(record, graphs) for record in records]
    feeds = seeded_inputs(bounded, sizes, vocab_size=2, seed=seed)
    for record in bounded:
        if record.dtype == DType.BOOL.value or (record.name.endswith("mask") and record.below == 2):
            feeds[record.name] = torch.ones_like(feeds[record.name])
    return feeds


def _bounded(record: TensorRecord, graphs: Sequence[GraphSide]) -> TensorRecord:
    """An integer input with its limit: the rows of the smallest table that it indexes, else 2."""
    if record.below is not None or dtype_from_name(record.dtype).floating:
        return record
    rows = [
        n for g in graphs for v in g.model.graph.inputs if v.name == record.name for n in _rows(v)
    ]
    return record.model_copy(update={"below": min(rows, default=2)})


def _rows(value: ir.Value) -> list[int]:
    found = []
    for use in value.uses():
        node = use.node
        if node.op_type == "Gather" and use.idx == 1 and node.inputs[0] is not None:
            shape = node.inputs[0].shape
            if shape is not None and isinstance(shape[0], int):
                found.append(shape[0])
        elif node.op_type in _MOVES:
            found += [n for out in node.outputs for n in _rows(out)]
    return found
