"""Put a finished folder in the place of an old one, so that a kill at any moment loses neither.

    .b.XXXXXXXX.partial -> b, while the old b waits as .b.XXXXXXXX.old and then goes with the partial folder

A process that is killed between the two renames leaves the old content under its hidden name, and nothing at `b`. `recover`
puts it back, or removes it where the new content stands. A lock on the old folder tells the dead from the living, as in
partial.py.
"""

import contextlib
import logging
import os
import shutil
from pathlib import Path

from .partial import SUFFIX, hidden_folders, lock_folder

OLD = ".old"
logger = logging.getLogger(__name__)


def replace_folder(staging: Path, path: Path) -> None:
    """Rename `staging`, which partial_folder yielded, to `path`; what was there goes when the partial folder does.

    On an error `path` is as it was. Raises OSError where the folder cannot be renamed.
    """
    old = staging.with_suffix(OLD)
    lock = _held(path)
    try:
        if path.exists():
            path.rename(old)
        staging.rename(path)
        with contextlib.suppress(OSError):  # there was none, or `recover` will see to it
            old.rename(staging)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def recover(path: Path, mark: str) -> None:
    """Undo what killed processes left of a replacement of `path`: the newest old content is back, or the new stands.

    mark: a file that every whole folder there has; what is without it is left alone, be it at `path` or beside it.
    """
    for old in sorted(hidden_folders(path.parent, path.name, OLD), key=_changed, reverse=True):
        lock = lock_folder(old, wait=False)
        if lock is None:  # being replaced, or not ours to judge
            continue
        with contextlib.suppress(OSError):
            whole = (old / mark).is_file()
            if _is_empty(old) or (whole and (path / mark).is_file()):
                gone = old.with_suffix(SUFFIX)  # a sweeper ends what is killed here
                old.rename(gone)
                shutil.rmtree(gone)
            elif whole and (not path.exists() or _is_empty(path)):
                old.rename(path)
                logger.warning("%s is back: who was replacing it was killed", path)
        os.close(lock)


def _held(path: Path) -> int | None:
    """The lock of the folder that is at `path` once it is held; None where there is none, or no locks."""
    while (lock := lock_folder(path, wait=True)) is not None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                break
        os.close(lock)  # another process replaced it meanwhile
    return lock


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _changed(folder: Path) -> float:
    try:
        return folder.stat().st_ctime
    except FileNotFoundError:
        return 0.0
