"""Files with two names, and a folder that one process at a time writes into."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give the file a second name; a copy where links do not work."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextlib.contextmanager
def one_at_a_time(repository: Path) -> Iterator[None]:
    """Wait until no other process packs into `repository`; where the system has no such locks, go on."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(repository, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
