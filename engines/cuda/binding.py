"""An address for every tensor of a run: the caller's own memory where it lies on the GPU, else a buffer of the slot's."""

import math
from dataclasses import dataclass, field

from ...core.dtypes import dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Shape
from ..runner import Call
from .blocks import Arena, Block
from .engine import Engine
from .flight import Flight


@dataclass(slots=True)
class Bound:
    """One run, bound. fresh: blocks, by output, that leave with the caller."""

    shapes: dict[str, Shape]
    addresses: dict[str, int] = field(default_factory=dict)
    fresh: dict[str, Block] = field(default_factory=dict)


class Buffers:
    """A slot's own memory for tensors: one block each, which grows to the largest run so far."""

    def __init__(self, engine: Engine, arena: Arena) -> None:
        self._engine, self._arena = engine, arena
        self._blocks: dict[str, Block] = {}
        self._sources = {source: output for output, source in engine.aliases.items()}

    def bind(self, bound: Bound, call: Call, last: Flight | None, *, fresh: bool) -> None:
        """Fill `bound`. fresh: results get new blocks, which outlive the run. last: what may still use the buffers.

        Raises UsageError for an output of the caller's of the wrong shape, or apart from the input that it updates in place.
        """
        for name, view in call.outputs.items():
            if view.shape != bound.shapes[name]:
                raise UsageError(
                    f"output {name!r}",
                    found=f"shape {view.shape}",
                    fix=f"For these inputs it is {bound.shapes[name]}",
                )
        for record in self._engine.inputs:
            view = call.inputs[record.name]
            if view.array is None:
                bound.addresses[record.name] = view.address
            elif fresh and record.name in self._sources:  # updated in place, and the result leaves
                block = bound.fresh[self._sources[record.name]] = self._arena.allocate(view.nbytes)
                bound.addresses[record.name] = block.address
            else:
                bound.addresses[record.name] = self._buffer(record.name, view.nbytes, last)
        for record in self._engine.outputs:
            bound.addresses[record.name] = self._output(record, bound, call, last, fresh)

    def give_back(self) -> None:
        """Free every buffer, when nothing runs any more."""
        for block in self._blocks.values():
            self._arena.give_back(block)
        self._blocks = {}

    def _output(
        self, record: TensorRecord, bound: Bound, call: Call, last: Flight | None, fresh: bool
    ) -> int:
        view, source = call.outputs.get(record.name), self._engine.aliases.get(record.name)
        given = view.address if view is not None and view.array is None else None
        if source is not None:
            if given is not None and given != bound.addresses[source]:
                raise UsageError(
                    f"output {record.name!r}",
                    found=f"other memory than input {source!r}, which it updates in place",
                    fix=f"Give the memory of {source!r} for both",
                )
            return bound.addresses[source]
        if given is not None:
            return given
        size = dtype_from_name(record.dtype).itemsize
        nbytes = math.prod(bound.shapes[record.name]) * size
        if not fresh:
            return self._buffer(record.name, nbytes, last)
        block = bound.fresh[record.name] = self._arena.allocate(nbytes)
        return block.address

    def _buffer(self, name: str, nbytes: int, last: Flight | None) -> int:
        block = self._blocks.get(name)
        if block is None or block.nbytes < nbytes:
            if block is not None:
                block.flight = last
                del self._blocks[name]
                self._arena.give_back(block)
            block = self._blocks[name] = self._arena.allocate(nbytes)
        return block.address
