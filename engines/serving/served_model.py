"""One session behind a server: opened, checked against the golden outputs, and batched. No serving framework is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ...core.bundle import Bundle
from ...core.errors import UnavailableError, UsageError
from ...core.manifest import TensorRecord
from ..feeds import check_feeds
from ..session import DEFAULT_TARGET, Session
from .batcher import Batcher, Feeds
from .batching import batching_of
from .golden import samples_of
from .model_name import check_name
from .readiness import Check, check_ready
from .wire_types import wire_name


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a bundle is served.

    name: of the model in the URL, None for the bundle's. max_batch: rows that one run may join, None for the profiles'.
    wait_ms: how long a request waits for others while nothing runs.
    """

    precision: str | None = None
    target: str = DEFAULT_TARGET
    name: str | None = None
    max_batch: int | None = None
    wait_ms: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.wait_ms < 60_000:
            raise UsageError(
                f"wait of {self.wait_ms:g} ms", found="out of range", fix="Give 0 to 60,000"
            )
        if self.name is not None:
            check_name(self.name)


class Watch(Protocol):
    """Who counts: requests by status and seconds, runs by requests and rows."""

    def request(self, status: int, seconds: float) -> None:
        """An inference request was answered."""

    def run(self, requests: int, rows: int) -> None:
        """A run has ended."""


class Unwatched:
    """Counts nothing."""

    def request(self, status: int, seconds: float) -> None:
        """Drop it."""

    def run(self, requests: int, rows: int) -> None:
        """Drop it."""


class ServedModel:
    """A bundle's graph on one target.

    checks: what the golden outputs showed, empty where the bundle has none. ready: whether it answers.
    Opening it warms the session up and raises ArtefactError when its golden outputs differ, UsageError for a type that the
    protocol lacks, and whatever Session raises.
    """

    def __init__(
        self, bundle: str | Path, options: ServeOptions | None = None, watch: Watch | None = None
    ) -> None:
        self._options = options = options or ServeOptions()
        self.watch = watch or Unwatched()
        opened = Bundle.open(bundle)
        variant = opened.manifest.variant(options.precision)
        self.name, self.target = options.name or opened.manifest.name, options.target
        self._session = session = Session(
            opened, precision=options.precision, target=options.target
        )
        try:
            for record in (*session.inputs, *session.outputs):
                wire_name(record)
            self.batching = batching_of(
                session.inputs, session.outputs, session.profiles, options.max_batch
            )
            self.checks: tuple[Check, ...] = check_ready(
                session.run, variant, samples_of(opened), f"serve {opened.path} on {options.target}"
            )
        except BaseException:
            session.close()
            raise
        self._batcher: Batcher | None = None
        self.ready = True

    @property
    def inputs(self) -> tuple[TensorRecord, ...]:
        return self._session.inputs

    @property
    def outputs(self) -> tuple[TensorRecord, ...]:
        return self._session.outputs

    async def infer(self, feeds: Feeds) -> Feeds:
        """Every output for `feeds`; UsageError for feeds that do not fit, before they meet any other request."""
        if not self.ready:
            raise UnavailableError("inference", found="the server is shutting down")
        checked = check_feeds(feeds, self._session.inputs, self._session.profiles)
        limit = self.batching.limit
        if limit and _rows(checked) > limit:
            raise UsageError(
                "inference request",
                found=f"{_rows(checked)} rows, but this server takes {limit} in one run",
                fix="Send fewer rows",
            )
        if self._batcher is None:  # made here: it belongs to the event loop
            self._batcher = Batcher(
                self._session.run,
                limit,
                room=self.batching.room_for,
                wait_seconds=self._options.wait_ms / 1000,
                observe=self.watch.run,
            )
        return await self._batcher.submit(checked)

    async def close(self) -> None:
        """Stop answering, let the run in progress end, free the session."""
        self.ready = False
        if self._batcher is not None:
            await self._batcher.close()
        self._session.close()


def _rows(feeds: dict[str, np.ndarray]) -> int:
    return int(next(iter(feeds.values())).shape[0])
