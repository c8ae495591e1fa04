"""A CUDA device that really holds memory and forgives nothing.

Work is queued and runs only when the host waits for it, in the order that streams and events promise and no other.
Faults besides those of fake_memory: a call without its device, host memory that goes while a copy is queued, events and
graphs that go too early, and anything that breaks a capture.
"""

import ctypes
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field

from fake_memory import POISON, DeviceError, FakeMemory


@dataclass(eq=False)
class Stream:
    """A queue of (kind, payload, clock); capture: what goes into a graph instead, and the thread that captures."""

    queue: deque = field(default_factory=deque)
    clock: dict[int, int] = field(default_factory=dict)
    capture: list | None = None
    thread: int | None = None
    ours: bool = True


class FakeCuda(FakeMemory):
    """One device; see engines.cuda.interface.Cuda. `check_clean` says what was not freed."""

    def __init__(self, ordinal=0):
        super().__init__()
        self.ordinal, self.handles = ordinal, 100
        self.streams, self.events, self.graphs, self.trace = {}, {}, {}, []

    # The device of a thread.

    @contextmanager
    def current(self):
        self.here.depth = getattr(self.here, "depth", 0) + 1
        try:
            yield
        finally:
            self.here.depth -= 1

    def _not_capturing(self, name):
        if any(s.thread == threading.get_ident() for s in self.streams.values()):
            raise DeviceError(f"{name} breaks this thread's capture")

    def _handle(self):
        self.handles += 1
        return self.handles

    # Streams.

    def create_stream(self):
        with self.lock:
            self._called("create_stream")
            stream = self._handle()
            self.streams[stream] = Stream()
            return stream

    def destroy_stream(self, stream):
        with self.lock:
            self._called("destroy_stream")
            if self._stream(stream).queue:
                raise DeviceError("a stream with work is destroyed")
            del self.streams[stream]

    def _stream(self, stream):
        if stream not in self.streams:
            raise DeviceError(f"no stream {stream}")
        return self.streams[stream]

    def push(self, stream, work):
        """Queue work(clock, stream), or capture it."""
        target = self._stream(stream)
        if target.capture is not None:
            target.capture.append(work)
            return
        self._tick(stream)
        target.queue.append(("work", work, dict(target.clock)))

    def _tick(self, stream):
        clock = self._stream(stream).clock
        for actor, time in self.host_clock.items():
            clock[actor] = max(time, clock.get(actor, 0))
        clock[stream] = clock.get(stream, 0) + 1

    def upload(self, address, array, stream):
        with self.lock:
            self._called("upload")
            self._not_capturing("upload")
            alive, source = weakref.ref(array), (array.ctypes.data, array.nbytes)

            def work(clock, on):
                if alive() is None:
                    raise DeviceError("host memory went before it was copied")
                self.store(address, ctypes.string_at(*source), clock, on)

            self.push(stream, work)

    def download(self, array, address, stream):
        with self.lock:
            self._called("download")
            self._not_capturing("download")
            assert array.flags.c_contiguous and array.flags.writeable
            alive, target, nbytes = weakref.ref(array), array.ctypes.data, array.nbytes
            ctypes.memset(target, POISON, nbytes)

            def work(clock, on):
                if alive() is None:
                    raise DeviceError("host memory went before it was filled")
                ctypes.memmove(target, self.load(address, nbytes, clock, on), nbytes)

            self.push(stream, work)

    def _drain(self, stream, until=None):
        queue = self._stream(stream).queue
        while queue and (until is None or not self.events[until]["happened"]):
            kind, payload, clock = queue.popleft()
            if kind == "work":
                try:
                    payload(clock, stream)
                except BaseException:
                    queue.clear()  # the device has failed: nothing more runs
                    raise
            elif kind == "record":
                self.events[payload]["happened"] = True
            elif payload in self.events:  # a wait; an event that is gone has happened
                self._drain(self.events[payload]["stream"], payload)

    def _seen(self, clock):
        for actor, time in clock.items():
            self.host_clock[actor] = max(time, self.host_clock.get(actor, 0))

    def synchronize(self, stream):
        with self.lock:
            self._called("synchronize")
            self._not_capturing("synchronize")
            self._drain(stream)
            self._seen(self._stream(stream).clock)

    # Events.

    def record(self, stream):
        with self.lock:
            self._called("record")
            self._tick(stream)
            clock, event = dict(self._stream(stream).clock), self._handle()
            self.events[event] = {"happened": False, "stream": stream, "clock": clock}
            self._stream(stream).queue.append(("record", event, clock))
            return event

    def wait(self, stream, event):
        with self.lock:
            self._called("wait")
            clock = self._stream(stream).clock
            for actor, time in self._event(event)["clock"].items():
                clock[actor] = max(time, clock.get(actor, 0))
            self._stream(stream).queue.append(("wait", event, {}))

    def _event(self, event):
        if event not in self.events:
            raise DeviceError(f"no event {event}")
        return self.events[event]

    def has_happened(self, event):
        with self.lock:
            self._called("has_happened")
            if self._event(event)["happened"]:
                self._seen(self._event(event)["clock"])
            return self._event(event)["happened"]

    def wait_for(self, event):
        with self.lock:
            self._called("wait_for")
            self._not_capturing("wait_for")
            found = self._event(event)
            if not found["happened"]:
                self._drain(found["stream"], event)
            self._seen(found["clock"])

    def destroy_event(self, event):
        with self.lock:
            self._called("destroy_event")
            if not self._event(event)["happened"]:
                raise DeviceError("an event is destroyed before it happened")
            del self.events[event]

    # Graphs.

    def is_capturing(self, stream):
        self._called("is_capturing")
        return self._stream(stream).capture is not None

    def begin_capture(self, stream):
        with self.lock:
            self._called("begin_capture")
            target = self._stream(stream)
            if target.capture is not None:
                raise DeviceError("a capture in a capture")
            target.capture, target.thread = [], threading.get_ident()

    def end_capture(self, stream):
        with self.lock:
            work = self._end(stream)  # it ends even where it fails
            self._called("end_capture")
            graph = self._handle()
            self.graphs[graph] = work
            return graph

    def abandon_capture(self, stream):
        with self.lock:
            self._end(stream)

    def _end(self, stream):
        target = self._stream(stream)
        if target.capture is None or target.thread != threading.get_ident():
            raise DeviceError("no capture of this thread")
        work, target.capture, target.thread = target.capture, None, None
        return work

    def launch(self, graph, stream):
        with self.lock:
            self._called("launch")
            if graph not in self.graphs:
                raise DeviceError(f"no graph {graph}")

            def work(clock, on, graph=graph):
                if graph not in self.graphs:
                    raise DeviceError("a graph was destroyed before it ran")
                for each in self.graphs[graph]:
                    each(clock, on)

            self.trace.append("replay")
            self.push(stream, work)

    def destroy_graph(self, graph):
        with self.lock:
            self._called("destroy_graph")
            if self.graphs.pop(graph, None) is None:
                raise DeviceError(f"graph {graph} is destroyed twice")

    # What a test does from outside.

    def foreign_stream(self):
        """A stream of the caller's."""
        stream = self._handle()
        self.streams[stream] = Stream(ours=False)
        return stream

    def order(self, before, after):
        """Let one stream wait for another, as a library that hands a tensor over does."""
        with self.lock, self.current():
            event = self.record(before)
            self.events[event]["ours"] = False
            self.wait(after, event)

    def progress(self):
        """Let the device finish what is queued, without the host hearing of it."""
        with self.lock:
            for stream in list(self.streams):
                self._drain(stream)

    def check_clean(self):
        """Nothing of ours is left."""
        left = {
            "memory": self.live(),
            "streams": [s for s, stream in self.streams.items() if stream.ours],
            "events": [e for e, event in self.events.items() if event.get("ours", True)],
            "graphs": list(self.graphs),
        }
        assert not any(left.values()), left
