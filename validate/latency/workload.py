"""One thing whose time is taken, under one protocol: give it inputs, then let it run and say how long it took."""

import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import torch

Feeds = Mapping[str, torch.Tensor]
ClockName = Literal["wall", "cpu"]
Clock = Callable[[], int]  # nanoseconds

CLOCKS: dict[ClockName, tuple[str, Clock]] = {
    "wall": ("monotonic clock", time.perf_counter_ns),
    "cpu": ("CPU time of the process", time.process_time_ns),
}


class Workload(Protocol):
    """label: its row in the table. clock: what took the time."""

    label: str
    clock: str

    def prepare(self, feeds: Feeds) -> None:
        """Take the inputs of the runs that follow; not timed."""

    def time(self) -> float:
        """Run once and return the seconds that it took."""

    def close(self) -> None:
        """Free everything; called once."""


class CallWorkload:
    """A Python call that returns when its work is done: ONNX Runtime, or a torch module on the CPU.

    bind: feeds -> the call without arguments.
    """

    def __init__(
        self,
        label: str,
        bind: Callable[[Feeds], Callable[[], object]],
        clock: tuple[str, Clock] = CLOCKS["wall"],
    ) -> None:
        self.label, self._bind = label, bind
        self.clock, self._now = clock
        self._call: Callable[[], object] | None = None

    def prepare(self, feeds: Feeds) -> None:
        """Bind the inputs."""
        self._call = self._bind(feeds)

    def time(self) -> float:
        """The call between two readings of the clock."""
        call, now = self._call, self._now
        assert call is not None, "prepare comes first"
        start = now()
        call()
        return (now() - start) * 1e-9

    def close(self) -> None:
        """Let go of the call and of what it holds."""
        self._call = None
        self._bind = _closed


def _closed(feeds: Feeds) -> Callable[[], object]:
    raise AssertionError("closed")
