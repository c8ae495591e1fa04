"""The execution contexts of one slot: set sizes, launch, capture, replay, time layers.

A context is a TensorRT object that one run at a time may use; all of a slot's share one scratch memory, since its runs
follow each other.
"""

from collections.abc import Mapping
from typing import Any

from ...core.errors import BuildError, UsageError
from ...core.shapes import Shape
from ..runner import LayerTimes
from ..tensorrt_api import create_profiler
from .blocks import Arena
from .engine import Engine
from .graphs import Captured, Graphs
from .interface import Cuda

Sizes = tuple[int, tuple[Shape, ...]]  # profile, shape of each input in the engine's order
Addresses = Mapping[str, int]
KNOWN = 256  # sizes whose output shapes are remembered


class Launcher:
    """Runs of one engine, one after the other. Every method is called inside `cuda.current()`.

    capture_on: a stream of the slot's own. Raises BuildError with TensorRT's words, UsageError where `graphs` are asked of
    an engine that TensorRT cannot capture.
    """

    def __init__(
        self, engine: Engine, cuda: Cuda, arena: Arena, capture_on: int, *, graphs: int
    ) -> None:
        self._engine, self._cuda, self._arena, self._capture_on = engine, cuda, arena, capture_on
        self._known: dict[Sizes, dict[str, Shape]] = {}
        self._at: Sizes | None = None  # what the context is set to
        self.graphs = Graphs(cuda, graphs)
        self._scratch = arena.allocate(engine.scratch_bytes)
        try:
            self._context: Any = engine.create_context(self._scratch.address)
            if graphs:
                self._check_capturable()
        except BaseException:
            arena.give_back(self._scratch)
            raise

    def output_shapes(self, sizes: Sizes, stream: int) -> dict[str, Shape]:
        """The shape of each output for these inputs; UsageError where it depends on values."""
        known = self._known.get(sizes)
        if known is None:
            self._set(self._context, sizes, stream)
            known = {
                record.name: tuple(self._context.get_tensor_shape(record.name))
                for record in self._engine.outputs
            }
            for name, shape in known.items():
                if any(size < 0 for size in shape):
                    raise UsageError(
                        f"output {name!r}",
                        found=f"shape {shape}: a size depends on the values of inputs",
                        fix="Sessions serve graphs whose output shapes follow from input shapes",
                    )
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[sizes] = known
        return known

    def launch(self, sizes: Sizes, addresses: Addresses, stream: int) -> None:
        """Queue one run: replay its graph if there is one, else launch; capture it when it comes a second time."""
        key = (*sizes, *addresses.values())
        graph = self.graphs.find(key)
        if graph is not None:
            self._cuda.launch(graph, stream)
        elif self.graphs.is_due(key):
            self._capture(key, sizes, addresses, stream)
        else:
            self._launch(self._context, sizes, addresses, stream)

    def time_layers(
        self, sizes: Sizes, addresses: Addresses, stream: int, on_layer: LayerTimes
    ) -> None:
        """Run and wait, on a context of its own, with TensorRT timing each layer; `on_layer` is told afterwards."""
        heard: list[tuple[str, float]] = []
        context = self._engine.create_context(self._scratch.address)
        profiler = create_profiler(self._engine.api, lambda name, ms: heard.append((name, ms)))
        context.profiler = profiler
        try:
            self._launch(context, sizes, addresses, stream)
        finally:
            self._cuda.synchronize(stream)
        for name, milliseconds in heard:
            on_layer(name, milliseconds / 1000)

    def close(self) -> None:
        """Free graphs, context and scratch, when nothing runs any more."""
        self.graphs.clear()
        self._context = None
        self._arena.give_back(self._scratch)

    def _set(self, context: Any, sizes: Sizes, stream: int) -> None:
        """Set profile and input shapes, unless they are what the slot's lasting context has already."""
        lasting = context is self._context
        if lasting and self._at == sizes:
            return
        if lasting:
            self._at = None
        profile, shapes = sizes
        self._engine.loaded.words.clear()
        if context.active_optimization_profile != profile and (
            not context.set_optimization_profile_async(profile, stream)
        ):
            raise BuildError(f"profile {profile}", found=self._engine.said())
        for record, shape in zip(self._engine.inputs, shapes, strict=True):
            if not context.set_input_shape(record.name, shape):
                raise BuildError(f"input {record.name!r} of {shape}", found=self._engine.said())
        if lasting:
            self._at = sizes

    def _launch(self, context: Any, sizes: Sizes, addresses: Addresses, stream: int) -> None:
        self._set(context, sizes, stream)
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise BuildError(f"address of {name!r}", found=self._engine.said())
        self._execute(context, stream)

    def _execute(self, context: Any, stream: int) -> None:
        self._engine.loaded.words.clear()
        if not context.execute_async_v3(stream):
            if context is self._context:
                self._at = None
            raise BuildError("run", found=self._engine.said())

    def _capture(self, key: Any, sizes: Sizes, addresses: Addresses, stream: int) -> None:
        """Run on a new context, whose first launch settles what new shapes need, then capture the same run from it."""
        context = self._engine.create_context(self._scratch.address)
        try:
            self._launch(context, sizes, addresses, stream)
            self._cuda.begin_capture(self._capture_on)
            try:
                self._execute(context, self._capture_on)
            except BaseException:
                self._cuda.abandon_capture(self._capture_on)
                raise
            captured = Captured(self._cuda.end_capture(self._capture_on), context)
        except BaseException:
            self._cuda.synchronize(stream)  # the run may still use the context
            raise
        self.graphs.keep(key, captured, lambda: self._cuda.synchronize(stream))

    def _check_capturable(self) -> None:
        """TensorRT-RTX tells beforehand whether an engine can be captured."""
        ask = getattr(self._context, "is_stream_capturable", None)
        if ask is not None and not ask(self._capture_on):
            raise UsageError(
                f"cuda_graphs of {self._engine.asked}",
                found=f"{self._engine.api.version} cannot capture this engine",
                fix="Leave cuda_graphs out",
            )
