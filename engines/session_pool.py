"""A bounded pool: one slot for one thread at a time, made when first needed, given back when the thread is done.

A slot is what one run needs for itself: for TensorRT an execution context with its buffers.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..core.errors import UnavailableError, UsageError

S = TypeVar("S")


class Pool(Generic[S]):
    """At most `size` slots. A thread gets the slot it had last where that is free, else any free one, else a new one.

    wait_seconds: how long a thread waits for a slot, and close for the threads that have one.
    """

    def __init__(self, make: Callable[[], S], size: int, wait_seconds: float, asked: str) -> None:
        self._make, self._size, self._wait, self._asked = make, size, wait_seconds, asked
        self._changed = threading.Condition()
        self._free: list[S] = []
        self._owners: dict[int, int] = {}  # id of a slot -> the thread that had it last
        self._busy: dict[int, S | None] = {}  # thread -> its slot, None while that is being made
        self._exclusive = self._closed = False

    @contextmanager
    def take(self, asked: str | None = None) -> Iterator[S]:
        """Lend one slot to this thread.

        Raises UsageError when the pool is closed or this thread has a slot already, UnavailableError when none gets free
        in time, and what making one raises.
        """
        asked, me = asked or self._asked, threading.get_ident()
        with self._changed:
            self._check(asked)
            ready = self._changed.wait_for(
                lambda: self._closed or (not self._exclusive and self._has_room()), self._wait
            )
            self._check(asked)
            if not ready:
                raise self._late(asked)
            slot = self._choose(me)
            self._busy[me] = slot
        try:
            if slot is None:
                slot = self._make()
                self._owners[id(slot)] = me
            yield slot
        finally:
            with self._changed:
                del self._busy[me]
                if slot is not None:
                    self._free.append(slot)
                self._changed.notify_all()

    @contextmanager
    def all(self, asked: str) -> Iterator[list[S]]:
        """Lend every slot there is, once no other thread has one; others wait meanwhile. Raises as take does."""
        deadline = time.monotonic() + self._wait
        with self._changed:
            self._check(asked)
            free = self._changed.wait_for(
                lambda: self._closed or not self._exclusive, self._left(deadline)
            )
            self._check(asked)
            if not free:
                raise self._late(asked)
            self._exclusive = True
        try:
            with self._changed:
                idle = self._changed.wait_for(
                    lambda: self._closed or not self._busy, self._left(deadline)
                )
                self._check(asked)
                if not idle:
                    raise self._late(asked)
                self._busy[threading.get_ident()] = None
            try:
                yield list(self._free)
            finally:
                with self._changed:
                    del self._busy[threading.get_ident()]
        finally:
            with self._changed:
                self._exclusive = False
                self._changed.notify_all()

    def close(self, asked: str, *, wait_seconds: float | None = None) -> list[S]:
        """Refuse new runs at once, wait for those in progress, and hand every slot over: the first time only.

        Raises UnavailableError when a run takes longer than the wait; close may then be called again. Raises
        UsageError from inside a run, which would wait for itself.
        """
        with self._changed:
            self._check_nested(asked)
            self._closed = True
            self._changed.notify_all()
            wait = self._wait if wait_seconds is None else wait_seconds
            if not self._changed.wait_for(lambda: not self._busy, wait):
                raise UnavailableError(
                    asked,
                    found=f"{len(self._busy)} run(s) still going after {wait:g} s",
                    fix="No new run starts; call close again to wait once more",
                )
            slots, self._free = self._free, []
            return slots

    @property
    def slots(self) -> int:
        """How many there are."""
        with self._changed:
            return len(self._free) + len(self._busy)

    def _has_room(self) -> bool:
        return bool(self._free) or len(self._busy) < self._size

    def _choose(self, me: int) -> S | None:
        if not self._free:
            return None
        mine = next((s for s in self._free if self._owners.get(id(s)) == me), self._free[-1])
        self._free.remove(mine)
        self._owners[id(mine)] = me
        return mine

    def _check(self, asked: str) -> None:
        if self._closed:
            raise UsageError(asked, found="the session is closed", fix="Open a new one")
        self._check_nested(asked)

    def _check_nested(self, asked: str) -> None:
        if threading.get_ident() in self._busy:
            raise UsageError(
                asked,
                found="it was called from inside a run of the same session",
                fix="Call it when the run is over",
            )

    def _late(self, asked: str) -> UnavailableError:
        return UnavailableError(
            asked,
            found=f"all {self._size} context(s) have been busy for {self._wait:g} s",
            fix="Allow more contexts or a longer wait_seconds",
        )

    @staticmethod
    def _left(deadline: float) -> float:
        return max(deadline - time.monotonic(), 0.0)
