"""The memory of FakeCuda: real bytes, and who may touch them when.

Faults: use after free, out of bounds, double free, two streams on one block without an event between them, and a host that
reads what it has not waited for.
"""

import bisect
import threading
from dataclasses import dataclass, field

from blockforge.core.errors import UnavailableError

FIRST, GAP = 0x7F0000000000, 4096
POISON = 0xCB


class DeviceError(AssertionError):
    """A use of the device that CUDA forbids or leaves undefined."""


@dataclass(eq=False)
class Memory:
    """One allocation: its bytes, and who wrote and read it last, as (stream, time)."""

    address: int
    data: bytearray
    written: tuple[int, int] | None = None
    promised: tuple[int, int] | None = None  # the last write that was queued
    read: dict[int, int] = field(default_factory=dict)


class FakeMemory:
    """Blocks with gaps between them. fail: name of a call -> how many still work before one fails."""

    def __init__(self):
        self.lock, self.here = threading.RLock(), threading.local()
        self.memory, self.bases, self.next = {}, [], FIRST
        self.freed, self.outside = set(), {}  # outside: tensors of others, not ours to free
        self.fail, self.mallocs, self.host_clock = {}, 0, {}

    def _called(self, name):
        if not getattr(self.here, "depth", 0):
            raise DeviceError(f"{name} outside of current()")
        if self.fail.get(name) is not None:
            self.fail[name] -= 1
            if self.fail[name] < 0:
                del self.fail[name]
                raise UnavailableError(f"CUDA {name}", found="cudaErrorMemoryAllocation (2)")

    def malloc(self, nbytes):
        with self.lock:
            self._called("malloc")
            self._not_capturing("malloc")
            if nbytes < 1:
                raise DeviceError("malloc of nothing")
            self.mallocs += 1
            return self._place(nbytes)

    def _place(self, nbytes):
        address = self.next
        self.next += -(-(nbytes + GAP) // 256) * 256
        self.memory[address] = Memory(address, bytearray([POISON]) * nbytes)
        self.bases.append(address)
        return address

    def free(self, address):
        with self.lock:
            self._called("free")
            if address in self.freed:
                raise DeviceError(f"double free of {address:#x}")
            if address not in self.memory or address in self.outside:
                raise DeviceError(f"free of {address:#x}, which malloc did not give")
            del self.memory[address]
            self.bases.remove(address)
            self.freed.add(address)

    def _find(self, address, nbytes):
        index = bisect.bisect_right(self.bases, address) - 1
        block = self.memory[self.bases[index]] if index >= 0 else None
        if block is None or address + nbytes > block.address + len(block.data):
            after = any(base <= address < base + GAP for base in self.freed)
            raise DeviceError(f"{address:#x}+{nbytes} is {'freed' if after else 'out of bounds'}")
        return block, address - block.address

    def load(self, address, nbytes, clock, stream):
        """What queued work reads."""
        block, start = self._find(address, nbytes)
        self._ordered(block.written, clock, "reads", block)
        block.read[stream] = max(clock.get(stream, 0), block.read.get(stream, 0))
        return bytes(block.data[start : start + nbytes])

    def store(self, address, data, clock, stream):
        """What queued work writes."""
        block, start = self._find(address, len(data))
        self._ordered(block.written, clock, "writes", block)
        for reader in block.read.items():
            self._ordered(reader, clock, "writes what is read from", block)
        block.written, block.read = (stream, clock.get(stream, 0)), {}
        block.data[start : start + len(data)] = data

    @staticmethod
    def _ordered(before, clock, verb, block):
        if before is not None and clock.get(before[0], 0) < before[1]:
            raise DeviceError(f"a stream {verb} {block.address:#x} without waiting for another")

    def promise(self, address, stream):
        """Work that was queued will write here."""
        block, _ = self._find(address, 0)
        block.promised = (stream, self._stream(stream).clock[stream])

    # What a test does from outside.

    def put(self, array, stream=None):
        """The address of memory of the caller's with these values; stream: that still has to write them."""
        with self.lock:
            address = self._place(max(array.nbytes, 1))
            self.outside[address] = array
            data = array.tobytes()
            if stream is None:
                self.memory[address].data[: len(data)] = data
            else:
                self.push(stream, lambda clock, on: self.store(address, data, clock, on))
                self.memory[address].written = (stream, self.streams[stream].clock[stream])
            return address

    def peek(self, address, nbytes):
        """What the caller's host reads; a fault unless it has waited for it."""
        with self.lock:
            block, start = self._find(address, nbytes)
            for write in (block.written, block.promised):
                self._ordered(write, self.host_clock, "still writes", block)
            return bytes(block.data[start : start + nbytes])

    def drop(self, address):
        """Free memory of the caller's."""
        with self.lock:
            del self.outside[address], self.memory[address]
            self.bases.remove(address)
            self.freed.add(address)

    def live(self):
        """Addresses that malloc gave and nobody freed."""
        return [address for address in self.memory if address not in self.outside]
