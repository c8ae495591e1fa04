"""A hidden folder for half-written files, and the sweeping of those whose process is gone.

    partial_folder(parent, "b") -> parent/.b.XXXXXXXX.partial, held by a lock on the folder itself

The kernel lets go of the lock when its process ends, however it ends. So a folder that can be locked is nobody's; process
ids, which are given out again, play no part. Where the file system has no such locks nothing is swept.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SUFFIX = ".partial"


@contextlib.contextmanager
def partial_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder inside `parent`; it is removed at the end, unless it was renamed away.

    What dead processes left of the same name is swept first. Raises OSError where `parent` cannot be written.
    """
    sweep(parent, name)
    folder, lock = _made(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(parent: Path, name: str | None = None) -> tuple[Path, ...]:
    """Remove the partial folders in `parent` (those of `name`, or all) whose process is gone; returns them."""
    swept = []
    for folder in hidden_folders(parent, name, SUFFIX):
        lock = lock_folder(folder, wait=False)
        if lock is None:  # at work, or not ours to judge
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        swept.append(folder)
    return tuple(swept)


def hidden_folders(parent: Path, name: str | None, suffix: str) -> list[Path]:
    """The folders `.NAME.XXXXXXXX<suffix>` in `parent`, the middle without a dot; of every name for None."""
    try:
        found = [p for p in parent.iterdir() if p.name.startswith(".") and p.suffix == suffix]
    except OSError:
        return []
    if name is not None:
        found = [p for p in found if p.name.removesuffix(suffix).rpartition(".")[0] == f".{name}"]
    return [p for p in found if p.is_dir() and not p.is_symlink()]


def _made(parent: Path, name: str) -> tuple[Path, int | None]:
    """A new folder and its lock; again where a sweeper took it between the two."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=SUFFIX, dir=parent))
        lock = lock_folder(folder, wait=True)
        if folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def lock_folder(folder: Path, *, wait: bool) -> int | None:
    """An open descriptor that holds the folder's lock; None where another holds it or there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
