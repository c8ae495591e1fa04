"""What a runtime has to offer for a session to run on it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Runner(Protocol):
    """A loaded engine. Feeds are checked by then: contiguous, of the declared type and size."""

    def run(self, feeds: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
        """Every output by name."""

    def close(self) -> None:
        """Free everything; called once."""
