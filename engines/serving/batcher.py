"""Dynamic batching: requests of equal inner sizes are joined along the batch axis, run once, and split again.

    submit({"ids": [2, 7]}) and submit({"ids": [1, 7]}) -> run({"ids": [3, 7]}) -> rows 0-1 and row 2

Nothing is padded: sizes that differ run apart, each size in its own line. One run at a time, in a thread of its own, so that the
event loop goes on answering. Plain asyncio: no serving framework is needed.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ...core.errors import BuildError, UnavailableError

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]
Line = tuple[
    tuple[str, str, tuple[int, ...]], ...
]  # name, dtype and sizes without the batch, of every input


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in its line; answer: the future of its outputs. room: rows up to which the line is joined."""

    feeds: Feeds
    rows: int
    room: int
    answer: "asyncio.Future[Feeds]"
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Joins requests of up to `limit` rows; limit 0 runs each alone.

    room: for the shapes of a request, up to how many rows it may be joined, `limit` for None; one that has more runs alone.
    run: computes the outputs of joined feeds; called from one thread, never twice at once. wait_seconds: how long the first
    request of a line waits for others while nothing else runs. observe(requests, rows): called after each run.
    Use it from one event loop; close it at the end.
    """

    def __init__(
        self,
        run: Run,
        limit: int,
        *,
        room: Callable[[Mapping[str, tuple[int, ...]]], int] | None = None,
        wait_seconds: float = 0.002,
        observe: Callable[[int, int], None] = lambda requests, rows: None,
    ) -> None:
        self._run, self._limit, self._wait, self._observe = run, limit, wait_seconds, observe
        self._room = room or (lambda shapes: limit)
        self._lines: dict[Line, deque[_Waiting]] = {}
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "blockforge-run")
        self._loop: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def submit(self, feeds: Feeds) -> Feeds:
        """The outputs for `feeds`, which fit the model and have `limit` rows at most.

        Raises what `run` raises, and UnavailableError once closed.
        """
        if self._closing.is_set():
            raise _closed()
        if self._loop is None:
            self._loop = asyncio.create_task(self._work())
        rows = next(iter(feeds.values())).shape[0] if self._limit else 1
        room = self._room({name: a.shape for name, a in feeds.items()}) if self._limit else 0
        waiting = _Waiting(feeds, rows, room, asyncio.get_running_loop().create_future())
        self._lines.setdefault(self._line(feeds), deque()).append(waiting)
        self._news.set()
        return await waiting.answer

    async def close(self) -> None:
        """Stop after the run in progress, which is answered; whoever still waits gets UnavailableError."""
        self._closing.set()
        self._news.set()
        if self._loop is not None:
            await self._loop
        for line in self._lines.values():
            for waiting in line:
                _fail(waiting, _closed())
        self._lines.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _line(self, feeds: Feeds) -> Line:
        start = 1 if self._limit else 0
        return tuple((name, str(a.dtype), a.shape[start:]) for name, a in feeds.items())

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            if self._closing.is_set():
                return
            line = self._oldest()
            if line is None:
                self._news.clear()
                continue
            await self._gather(self._lines[line])
            if self._closing.is_set():
                return
            batch = self._take(line)
            if batch:
                await self._answer(batch)

    def _oldest(self) -> Line | None:
        """The line whose first request has waited longest."""
        for line in [key for key, waiting in self._lines.items() if not waiting]:
            del self._lines[line]
        return min(self._lines, key=lambda key: self._lines[key][0].since, default=None)

    async def _gather(self, line: deque[_Waiting]) -> None:
        """Wait until the line fills a batch, its first request has waited long enough, or all is closed."""
        end, room = line[0].since + self._wait, line[0].room
        while not self._closing.is_set() and sum(w.rows for w in line) < room:
            left = end - time.monotonic()
            if left <= 0:
                return
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
            self._news.set()

    def _take(self, key: Line) -> list[_Waiting]:
        """The line's first requests that fit together, without those whose client has gone."""
        line, rows = self._lines[key], 0
        batch: list[_Waiting] = []
        while line and (not batch or rows + line[0].rows <= line[0].room):
            waiting = line.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
                rows += waiting.rows
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        """Run `batch` and hand out its rows. One that fails is run one by one: a request must not fail its neighbours."""
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._run_joined, batch
            )
        except asyncio.CancelledError:
            for waiting in batch:
                _fail(waiting, _closed())
            raise
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            for waiting in batch:
                await self._answer([waiting])
            return
        self._observe(len(batch), sum(waiting.rows for waiting in batch))
        for waiting, part in zip(batch, outputs, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(part)

    def _run_joined(self, batch: list[_Waiting]) -> list[Feeds]:
        if len(batch) == 1:
            return [dict(self._run(batch[0].feeds))]
        names = batch[0].feeds
        outputs = self._run({n: np.concatenate([w.feeds[n] for w in batch]) for n in names})
        total = sum(waiting.rows for waiting in batch)
        for name, output in outputs.items():
            if not output.shape or output.shape[0] != total:
                raise BuildError(
                    f"output {name!r} of {total} joined rows", found=f"its shape is {output.shape}"
                )
        parts, start = [], 0
        for waiting in batch:
            end = start + waiting.rows
            parts.append({name: output[start:end] for name, output in outputs.items()})
            start = end
        return parts


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _closed() -> UnavailableError:
    return UnavailableError("inference", found="the server is shutting down", fix="Ask another one")
