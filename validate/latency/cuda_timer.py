"""A GPU's own clock and its graphs, on top of engines/cuda_device.py: events around a launch, capture and replay.

Written to the API of cuda-python 13; it has not run yet, for want of a GPU (tests/validate/latency/test_plan.py shows
order and lifetimes with a stand-in).
"""

from collections.abc import Callable
from typing import Protocol

from ...engines.cuda_device import CudaDevice, Device


class TimedDevice(Device, Protocol):
    """What timing an engine needs of a GPU besides memory. Events and graphs are plain integers."""

    def mark(self) -> int:
        """Queue an event behind everything queued so far, and name it."""

    def elapsed(self, start: int, end: int) -> float:
        """Wait for `end`; the seconds between two events, which are freed."""

    def capture(self, launch: Callable[[], None]) -> int:
        """The graph of what `launch` queues."""

    def replay(self, graph: int) -> None:
        """Queue a captured graph."""

    def drop(self, graph: int) -> None:
        """Free a captured graph."""


class CudaTimer(CudaDevice):
    """TimedDevice through the CUDA runtime; UnavailableError without cuda-python or a GPU."""

    def mark(self) -> int:
        """cudaEventCreate, cudaEventRecord."""
        event = int(self._call("cudaEventCreate"))
        self._call("cudaEventRecord", event, self.stream)
        return event

    def elapsed(self, start: int, end: int) -> float:
        """cudaEventElapsedTime, which has a resolution of about half a microsecond."""
        self._call("cudaEventSynchronize", end)
        milliseconds = float(self._call("cudaEventElapsedTime", start, end))
        for event in (start, end):
            self._call("cudaEventDestroy", event)
        return milliseconds / 1000

    def capture(self, launch: Callable[[], None]) -> int:
        """cudaStreamBeginCapture ... cudaGraphInstantiate; the capture is ended whatever `launch` raises."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)
        try:
            launch()
        finally:
            graph = self._call("cudaStreamEndCapture", self.stream)
        ready = int(self._call("cudaGraphInstantiate", graph, 0))
        self._call("cudaGraphDestroy", graph)
        return ready

    def replay(self, graph: int) -> None:
        """cudaGraphLaunch."""
        self._call("cudaGraphLaunch", graph, self.stream)

    def drop(self, graph: int) -> None:
        """cudaGraphExecDestroy."""
        self._call("cudaGraphExecDestroy", graph)
