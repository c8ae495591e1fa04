"""An engine on a GPU: one deserialised engine, and slots that run it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.shapes import Shape
from ..session_source import Source
from ..tensorrt_api import Api
from ..tensorrt_session import load_engine
from ..views import Place
from .blocks import Arena
from .engine import Engine
from .flight import Flights
from .interface import Cuda
from .refit import refit_engine
from .slot import CudaSlot


class EngineRunner:
    """See runner.Runner. Deserialising runs native code from the plan: whoever opens it has verified it.

    graphs: how many captured graphs each slot keeps.
    Raises ArtefactError when the plan does not fit this TensorRT or GPU.
    """

    def __init__(self, source: Source, api: Api, cuda: Cuda, *, graphs: int = 0) -> None:
        assert source.plan is not None
        self._model, self._cuda, self._graphs = source.model, cuda, graphs
        host_code = bool(source.options.get("version_compatible"))
        with cuda.current():
            loaded = load_engine(source.plan, api, source.asked, host_code=host_code)
        self.engine = Engine(loaded, api, source.asked, graphs=graphs > 0)
        self.place = Place(source.asked, cuda.ordinal)
        self.profiles = self.engine.profiles
        self._arena, self._flights = Arena(cuda), Flights()
        self._slots: list[CudaSlot] = []

    def open_slot(self) -> CudaSlot:
        """A new stream, context and buffers; BuildError when TensorRT cannot make a context."""
        slot = CudaSlot(self.engine, self._cuda, self._arena, self._flights, graphs=self._graphs)
        self._slots.append(slot)
        return slot

    def refit(self, weights: Mapping[str, Any]) -> None:
        """Exchange weights, when every slot is settled; see refit.refit_engine."""
        with self._cuda.current():
            self._flights.wait()
            refit_engine(self.engine, weights, _weight_shapes(self._model))

    def counts(self) -> dict[str, int]:
        """Graphs captured, replayed and evicted, over all slots."""
        slots = list(self._slots)
        names = ("captured", "replayed", "evicted")
        return {name: sum(slot.counts[name] for slot in slots) for name in names}

    def close(self) -> None:
        """Free memory, then the engine, when every slot is closed. Results that were handed on keep theirs."""
        with self._cuda.current():
            self._flights.wait()
            self._arena.close()
            self.engine.close()


def _weight_shapes(model: Path | None) -> Mapping[str, Shape]:
    """Shapes of the graph's weights, so that a refit can tell 2x3 from 3x2; a lone plan has no graph."""
    if model is None:
        return {}
    from ...graph.io import load_model

    initializers = load_model(model).graph.initializers.items()
    return {name: tuple(v.shape.numpy()) for name, v in initializers if v.shape is not None}
