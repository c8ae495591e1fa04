"""Run one job in a Python process of its own, so that a native crash is an error and not the end.

    parent: run_job(request) --request, one JSON line on stdin--> child (build_child.py)
    child:  events, one JSON object a line, on its stdout --> on_event(...); the last one is "done" or "failed"

The child's standard input stays open as a lifeline: it ends when the parent does. Whatever native code prints
is captured in a file and quoted only when the child dies without a word.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from ..core import errors
from ..core.errors import BuildError

log = logging.getLogger(__name__)

Event = dict[str, Any]  # "event" is log, step, done or failed; the rest depends on it
COMMAND = (sys.executable, "-P", "-m", "blockforge.engines.build_child")
QUOTED = 1500  # characters of a dead child's stderr worth showing
_END = object()


def run_job(
    asked: str,
    request: Event,
    on_event: Callable[[Event], None],
    *,
    timeout_seconds: float | None = None,
    command: Sequence[str] = COMMAND,
) -> Event:
    """Run `request` in a child process and return its "done" event; on_event sees log and step events.

    asked: what the work is for, the first half of an error's sentence.
    Any exception here, Ctrl-C included, kills the child before it goes on.
    Raises BuildError when the child dies, hangs past `timeout_seconds` or ends without a result, and the error
    that the child reports otherwise.
    """
    words: list[str] = []  # the errors the child logged before it died
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise:
        with _process(command, noise) as process:
            assert process.stdin and process.stdout
            with contextlib.suppress(OSError):  # a child that died at once is reported below
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            for event in _events(process, asked, timeout_seconds):
                if event["event"] == "done":
                    return event
                if event["event"] == "failed":
                    raise _reported(event)
                if event["event"] == "log" and event["severity"] in ("ERROR", "INTERNAL_ERROR"):
                    words.append(event["text"])
                on_event(event)
            code = process.wait()
        raise _death(asked, code, words, _tail(noise))


@contextlib.contextmanager
def _process(command: Sequence[str], noise: IO[str]) -> Iterator["subprocess.Popen[str]"]:
    """A child in a session of its own: the terminal's Ctrl-C reaches only us, and we end it and all it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _kill(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def _events(
    process: "subprocess.Popen[str]", asked: str, timeout_seconds: float | None
) -> Iterator[Event]:
    """Yield the child's events until it closes its end; BuildError once the time is up."""
    lines: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        assert process.stdout
        with contextlib.suppress(ValueError, OSError):  # closed by us
            for line in process.stdout:
                lines.put(line)
        lines.put(_END)

    threading.Thread(target=read, name="build-child-reader", daemon=True).start()
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        try:
            line = lines.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise BuildError(
                asked,
                found=f"no result after {timeout_seconds:g} s, so the builder was stopped",
                fix="Allow more time, or a smaller profile",
            ) from None
        if line is _END:
            return
        try:
            yield json.loads(line)
        except ValueError:
            log.debug("the child wrote a line that is no event: %r", line)


def _reported(event: Event) -> errors.BlockforgeError:
    """The error a child reported, as its own class."""
    kind = getattr(errors, event["error"], BuildError)
    error: errors.BlockforgeError = kind(event["asked"], found=event["found"], fix=event["fix"])
    return error


def _death(asked: str, code: int, words: Sequence[str], noise: str) -> BuildError:
    """A child that ended without a result: how it ended, in TensorRT's words where it said any."""
    name = _signal_name(code)
    how = (
        f"the builder process was ended by {name}"
        if name
        else f"the builder process ended with {code}"
    )
    said = "; ".join(dict.fromkeys(" ".join(w.split()) for w in words)) or noise
    fix = "A native crash: try another graph form, or report it with this message"
    if name == "SIGKILL":
        fix = (
            "Most likely out of memory: give the machine more, or build a smaller model or profile"
        )
    return BuildError(asked, found=how + (f"; its last words: {said}" if said else ""), fix=fix)


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return f"signal {-code}"


def _tail(noise: IO[str]) -> str:
    noise.seek(0)
    return " ".join(noise.read()[-QUOTED:].split())
