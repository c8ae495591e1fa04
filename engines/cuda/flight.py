"""Work that was queued and may not be done: the event that says so, and what has to stay alive until then."""

import threading
from collections.abc import Iterable

from .interface import Cuda


class Flight:
    """One run in flight. Its event is destroyed, and `keeps` let go, once it is known to have landed."""

    def __init__(self, cuda: Cuda, stream: int, keeps: Iterable[object]) -> None:
        """Record an event on `stream`, inside `cuda.current()`."""
        self._cuda, self._lock = cuda, threading.Lock()
        self._event: int | None = cuda.record(stream)
        self._keeps = list(keeps)

    def landed(self) -> bool:
        """Whether it is known to be done; asks without waiting, also not for another thread that waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._event is not None and self._cuda.has_happened(self._event):
                self._land()
            return self._event is None
        finally:
            self._lock.release()

    def wait(self) -> None:
        """Return when it is done."""
        with self._lock:
            if self._event is not None:
                self._cuda.wait_for(self._event)
                self._land()

    def hold(self, stream: int) -> None:
        """Let later work of `stream` wait for it."""
        with self._lock:
            if self._event is not None:
                self._cuda.wait(stream, self._event)

    def _land(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            self._cuda.destroy_event(event)
        self._keeps = []


class Flights:
    """Every run in flight of one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: list[Flight] = []

    def add(self, flight: Flight) -> None:
        """Remember it, and forget those that have landed."""
        with self._lock:
            self._flights = [f for f in self._flights if not f.landed()]
            self._flights.append(flight)

    def sweep(self) -> None:
        """Forget those that have landed."""
        with self._lock:
            self._flights = [f for f in self._flights if not f.landed()]

    def wait(self) -> None:
        """Return when all are done."""
        with self._lock:
            flights, self._flights = self._flights, []
        for flight in flights:
            flight.wait()
