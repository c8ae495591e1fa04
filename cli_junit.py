"""The option --junit: what a command judged, as a file that CI servers read."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .core.errors import BlockforgeError, UsageError
from .core.whole_file import write_whole

if TYPE_CHECKING:
    from .validate.junit import Check

JunitOption = Annotated[
    Path | None,
    typer.Option(
        "--junit", metavar="FILE", help="Also write a JUnit file, with a test case for each limit."
    ),
]


@contextlib.contextmanager
def junit_file(path: Path | None, command: str, subject: str) -> "Iterator[list[Check] | None]":
    """Yield a list for the command's test cases and write them to `path` in the end, also when a limit was missed.

    Without a path there is no list. An error that ends the command is a test case too, with the command's own time.
    subject: what it was called with. Raises UsageError at once where the file cannot be written.
    """
    if path is None:
        yield None
        return
    if not path.parent.is_dir() or path.is_dir():
        found = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UsageError(f"JUnit file {path}", found=found, fix="Name a file in a folder")
    from .validate.junit.check import Check as Case

    checks: list[Check] = []
    started = time.monotonic()
    try:
        yield checks
    except BlockforgeError as error:
        checks.append(Case(subject, command, "error", str(error), time.monotonic() - started))
        _write(path, command, checks, time.monotonic() - started)
        raise
    except typer.Exit:
        _write(path, command, checks, time.monotonic() - started)
        raise
    _write(path, command, checks, time.monotonic() - started)


def _write(path: Path, command: str, checks: "list[Check]", seconds: float) -> None:
    """Write the file whole or not at all."""
    from datetime import UTC, datetime

    from .validate.junit.xml import junit_xml

    text = junit_xml(f"blockforge {command}", checks, datetime.now(UTC), seconds)
    write_whole(path, text)
