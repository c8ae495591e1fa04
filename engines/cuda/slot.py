"""What one run of an engine needs for itself: a stream, execution contexts and buffers.

Call -> addresses -> launch on a stream -> results: copied to the host (run), or left on the GPU (enqueue)
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.dtypes import dtype_from_name
from ...core.errors import UsageError
from ..runner import Call
from ..views import LEGACY
from .binding import Bound, Buffers
from .blocks import Arena, Block
from .engine import Engine
from .flight import Flight, Flights
from .interface import Cuda
from .launcher import Launcher
from .tensor import DeviceTensor


class CudaSlot:
    """One thread at a time has it. Its runs follow each other, whatever streams they are on: they share its memory."""

    def __init__(
        self, engine: Engine, cuda: Cuda, arena: Arena, flights: Flights, *, graphs: int
    ) -> None:
        self._engine, self._cuda, self._arena, self._flights = engine, cuda, arena, flights
        self._last: Flight | None = None
        self._buffers = Buffers(engine, arena)
        with cuda.current():
            self.stream = cuda.create_stream()
            try:
                self._launcher = Launcher(engine, cuda, arena, self.stream, graphs=graphs)
            except BaseException:
                arena.sweep()
                cuda.destroy_stream(self.stream)
                raise
        self.counts = self._launcher.graphs.counts

    def run(self, call: Call) -> dict[str, Any]:
        """Compute, copy what the caller has no GPU memory for to the host, and wait. BuildError with TensorRT's words."""
        with self._stream(call) as stream:
            try:
                bound = self._launch(call, stream, fresh=False)
                results = {}
                for record in self._engine.outputs:
                    name = record.name
                    view = call.outputs.get(name)
                    if view is None:
                        dtype = dtype_from_name(record.dtype).numpy
                        array: np.ndarray | None = np.empty(bound.shapes[name], dtype)
                        results[name] = array
                    else:
                        array = view.array
                        results[name] = call.given[name]
                    if array is not None and array.nbytes:
                        self._cuda.download(array, bound.addresses[name], stream)
            finally:  # also after a failure: queued copies may still use the caller's memory
                self._cuda.synchronize(stream)
        return results

    def enqueue(self, call: Call) -> dict[str, DeviceTensor]:
        """Queue the run, and return results that know when they are done. BuildError with TensorRT's words."""
        for name, view in call.outputs.items():
            if view.array is not None:
                raise UsageError(
                    f"output {name!r}",
                    found="host memory, and enqueue leaves results on the GPU",
                    fix="Give GPU memory, or call run",
                )
        with self._stream(call) as stream:
            bound = Bound({})
            try:
                bound = self._launch(call, stream, fresh=True, bound=bound)
                flight = Flight(self._cuda, stream, (call, bound))
            except BaseException:
                self._cuda.synchronize(stream)
                for block in bound.fresh.values():
                    self._arena.give_back(block)
                raise
            self._last = flight
            self._flights.add(flight)
            return self._tensors(bound, call, stream, flight)

    def settle(self) -> None:
        """Wait for what was enqueued, and end every graph: its kernels may hold old weights."""
        with self._cuda.current():
            self._wait()
            self._launcher.graphs.clear()

    def close(self) -> None:
        """Wait, then free contexts, buffers and stream."""
        with self._cuda.current():
            self._wait()
            self._launcher.close()
            self._buffers.give_back()
            self._arena.sweep()
            self._cuda.destroy_stream(self.stream)

    @contextlib.contextmanager
    def _stream(self, call: Call) -> Iterator[int]:
        """The stream of the call, which waits for this slot's last run and for the producers of what was handed over."""
        stream = self.stream if call.stream is None else call.stream
        with self._cuda.current():
            self._flights.sweep()
            self._arena.sweep()
            if self._cuda.is_capturing(stream):
                raise UsageError(
                    "run",
                    found=f"stream {stream:#x} is being captured",
                    fix="Run outside of it: a session captures by itself (cuda_graphs)",
                )
            if self._last is not None:
                self._last.hold(stream)
            for view in (*call.inputs.values(), *call.outputs.values()):
                if view.after is not None and view.after != (stream or LEGACY):
                    producer = Flight(self._cuda, view.after, ())
                    producer.hold(stream)
                    self._flights.add(producer)
            yield stream

    def _launch(self, call: Call, stream: int, *, fresh: bool, bound: Bound | None = None) -> Bound:
        sizes = (call.profile, tuple(call.inputs[r.name].shape for r in self._engine.inputs))
        bound = bound or Bound({})
        bound.shapes = self._launcher.output_shapes(sizes, stream)
        self._buffers.bind(bound, call, self._last, fresh=fresh)
        for record in self._engine.inputs:
            view = call.inputs[record.name]
            if view.array is not None and view.nbytes:
                self._cuda.upload(bound.addresses[record.name], view.array, stream)
        if call.on_layer is None:
            self._launcher.launch(sizes, bound.addresses, stream)
        else:
            self._launcher.time_layers(sizes, bound.addresses, stream, call.on_layer)
        return bound

    def _tensors(
        self, bound: Bound, call: Call, stream: int, flight: Flight
    ) -> dict[str, DeviceTensor]:
        tensors = {}
        for record in self._engine.outputs:
            name = record.name
            block = bound.fresh.get(name)
            memory: Block | tuple[int, object] = (bound.addresses[name], call)
            if block is not None:
                block.flight = flight
                memory = block
            tensors[name] = DeviceTensor(
                (self._cuda, self._arena, stream),
                bound.shapes[name],
                dtype_from_name(record.dtype),
                flight,
                memory=memory,
            )
        return tensors

    def _wait(self) -> None:
        if self._last is not None:
            self._last.wait()
            self._last = None
