"""What a runtime has to offer for a session to run on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..core.dtypes import DType
from ..core.shapes import Profile
from .views import Place, View

if TYPE_CHECKING:
    import numpy as np

LayerTimes = Callable[[str, float], None]  # (layer or node, seconds)


@dataclass(frozen=True, slots=True)
class Call:
    """One run. Inputs are checked by then: row-major, of the declared type and size, within `profile`.

    outputs: where the caller wants results, and given: the objects that were handed over for them. stream: a CUDA stream,
    None for the slot's own. on_layer: told the time of each layer.
    """

    inputs: Mapping[str, View]
    outputs: Mapping[str, View] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    profile: int = 0
    stream: int | None = None
    on_layer: LayerTimes | None = None


class Tensor(Protocol):
    """A result that may still be computed. It also has `__dlpack__`, and on a GPU `__cuda_array_interface__`."""

    shape: tuple[int, ...]
    dtype: DType
    address: int

    def wait(self) -> None:
        """Return when it is computed."""

    def numpy(self) -> "np.ndarray":
        """Its values in host memory, once they are computed."""


class Slot(Protocol):
    """What one run needs for itself. One thread at a time has it."""

    @property
    def stream(self) -> int | None:
        """Its own CUDA stream, None where there is none."""

    def run(self, call: Call) -> dict[str, Any]:
        """Every output by name, ready: what was given for it, else an array."""

    def enqueue(self, call: Call) -> Mapping[str, Tensor]:
        """Every output by name, perhaps not computed yet."""

    def settle(self) -> None:
        """Wait for what was enqueued, and forget what depends on the weights."""

    def close(self) -> None:
        """Wait, then free everything; called once."""


class Runner(Protocol):
    """A loaded graph or engine. profiles: the sizes it takes, none for any."""

    place: Place
    profiles: tuple[Profile, ...]

    def open_slot(self) -> Slot:
        """A new slot."""

    def refit(self, weights: Mapping[str, Any]) -> None:
        """Exchange weights while nothing runs."""

    def counts(self) -> dict[str, int]:
        """What was captured, replayed and dropped so far."""

    def close(self) -> None:
        """Free everything, when every slot is closed; called once."""
