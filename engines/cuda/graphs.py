"""Captured CUDA graphs of one slot: the most recently used, each with the execution context it was captured from.

A graph fixes sizes and addresses, and TensorRT leaves undefined what a graph does once its context has changed: so each
graph has a context of its own, which nothing touches again.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .interface import Cuda

Key = tuple[Any, ...]  # profile, sizes of the inputs, address of every tensor
REMEMBERED = 64  # keys seen once, for each graph that may be kept


@dataclass(slots=True)
class Captured:
    """A graph and what it needs to stay valid."""

    graph: int
    context: Any


class Graphs:
    """At most `limit` graphs. A key is captured when it comes for the second time: fresh addresses cost nothing then."""

    def __init__(self, cuda: Cuda, limit: int) -> None:
        self._cuda, self._limit = cuda, limit
        self._captured: OrderedDict[Key, Captured] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self.counts = {"captured": 0, "replayed": 0, "evicted": 0}

    def find(self, key: Key) -> int | None:
        """The graph of `key`, which becomes the most recently used."""
        found = self._captured.get(key)
        if found is None:
            return None
        self._captured.move_to_end(key)
        self.counts["replayed"] += 1
        return found.graph

    def is_due(self, key: Key) -> bool:
        """Whether `key` should be captured now; notes that it came."""
        if not self._limit:
            return False
        if key in self._seen:
            del self._seen[key]
            return True
        self._seen[key] = None
        while len(self._seen) > REMEMBERED * self._limit:
            self._seen.popitem(last=False)
        return False

    def keep(self, key: Key, captured: Captured, settle: Callable[[], None]) -> None:
        """Keep a new graph; the least recently used goes, after `settle` has waited for what may still run it."""
        self._captured[key] = captured
        self.counts["captured"] += 1
        if len(self._captured) > self._limit:
            settle()
            _, oldest = self._captured.popitem(last=False)
            self._cuda.destroy_graph(oldest.graph)
            self.counts["evicted"] += 1

    def clear(self) -> None:
        """End every graph, when none runs any more."""
        while self._captured:
            _, captured = self._captured.popitem()
            self._cuda.destroy_graph(captured.graph)
        self._seen.clear()
