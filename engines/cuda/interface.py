"""What a session needs of CUDA: memory, streams, events and graphs, all named by plain integers.

CudaRuntime is the real one. Every call but `current` is made inside `with cuda.current()`.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np


class Cuda(Protocol):
    """One device. Each fault raises UnavailableError with CUDA's name for it. ordinal: the device's number."""

    ordinal: int

    def current(self) -> AbstractContextManager[None]:
        """Make the device this thread's current one for a while."""

    def malloc(self, nbytes: int) -> int:
        """The address of `nbytes` (1 or more) bytes. Not while this thread captures."""

    def free(self, address: int) -> None:
        """Give back what malloc gave; no queued work may still use it."""

    def upload(self, address: int, array: np.ndarray, stream: int) -> None:
        """Queue a copy of a row-major array, which has to live and keep its values until it is done."""

    def download(self, array: np.ndarray, address: int, stream: int) -> None:
        """Queue a copy into a row-major array, whose values are right once the stream is synchronised."""

    def create_stream(self) -> int:
        """A stream that does not wait for the default stream."""

    def destroy_stream(self, stream: int) -> None:
        """End a stream that has nothing left to do."""

    def synchronize(self, stream: int) -> None:
        """Wait until everything queued on the stream is done."""

    def record(self, stream: int) -> int:
        """A new event, which happens when everything queued on the stream so far is done."""

    def wait(self, stream: int, event: int) -> None:
        """Let what is queued on the stream from now on wait for the event."""

    def has_happened(self, event: int) -> bool:
        """Whether the event has happened."""

    def wait_for(self, event: int) -> None:
        """Wait until the event has happened."""

    def destroy_event(self, event: int) -> None:
        """End an event that has happened."""

    def is_capturing(self, stream: int) -> bool:
        """Whether what is queued on the stream goes into a graph instead of being run."""

    def begin_capture(self, stream: int) -> None:
        """Let what this thread queues on the stream go into a graph."""

    def end_capture(self, stream: int) -> int:
        """The captured graph, ready to launch. The capture ends even where this fails."""

    def abandon_capture(self, stream: int) -> None:
        """End a capture whose graph nobody wants."""

    def launch(self, graph: int, stream: int) -> None:
        """Queue a graph."""

    def destroy_graph(self, graph: int) -> None:
        """End a graph that is not running."""
