"""Device memory with an owner: each block is freed exactly once, and not before queued work is done with it."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...core.errors import UsageError
from .flight import Flight
from .interface import Cuda


@dataclass(eq=False, slots=True, weakref_slot=True)
class Block:
    """One allocation. flight: the last work that uses it. holders: how many outside the session have its address."""

    address: int
    nbytes: int
    flight: Flight | None = None
    holders: int = 0


class Arena:
    """The blocks of one session.

    A finaliser may give a block back at any moment, also while a graph is captured; so blocks are only noted then, and
    freed at the next sweep. What is lent when the arena closes is freed when it is given back.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._lock = threading.RLock()
        self._live: dict[int, Block] = {}
        self._returned: deque[Block] = deque()
        self._closed = False

    def allocate(self, nbytes: int) -> Block:
        """A block of at least one byte, since an empty tensor needs an address too; inside `cuda.current()`."""
        self.sweep()
        block = Block(self._cuda.malloc(max(nbytes, 1)), nbytes)
        with self._lock:
            self._live[block.address] = block
        return block

    def lend(self, block: Block | None, asked: str) -> None:
        """Note that someone outside has the address until the block is given back. UsageError when closed."""
        with self._lock:
            self._check_open(asked)
            if block is not None:
                block.holders += 1

    @contextmanager
    def reading(self, block: Block | None, asked: str) -> Iterator[None]:
        """Keep the block for a while, whoever closes meanwhile. UsageError when closed. None: memory of the caller's."""
        self.lend(block, asked)
        try:
            yield
        finally:
            if block is not None:
                with self._lock:
                    block.holders -= 1
                    over = self._closed and not block.holders
                if over:
                    self.give_back(block)

    def give_back(self, block: Block) -> None:
        """Free the block when queued work is done with it; from any thread, twice without harm."""
        self._returned.append(block)
        if self._closed:
            with self._cuda.current():
                self.sweep()

    def sweep(self) -> None:
        """Free the blocks that were given back and are done with, inside `cuda.current()`."""
        for _ in range(len(self._returned)):
            try:
                block = self._returned.popleft()
            except IndexError:  # another thread sweeps too
                return
            if block.flight is None or block.flight.landed():
                self._free(block)
            else:
                self._returned.append(block)

    def close(self) -> None:
        """Free every block that nobody outside has, when all queued work is done; inside `cuda.current()`."""
        with self._lock:
            self._closed = True
            mine = [block for block in self._live.values() if not block.holders]
        for block in mine:
            self._free(block)
        self.sweep()

    def _check_open(self, asked: str) -> None:
        if self._closed:
            raise UsageError(asked, found="the session is closed", fix="Read results before")

    def _free(self, block: Block) -> None:
        with self._lock:
            if self._live.get(block.address) is not block:
                return
            del self._live[block.address]
        self._cuda.free(block.address)
