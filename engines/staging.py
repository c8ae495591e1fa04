"""A hidden folder for half-written files: what is in it is moved out when whole, the rest is gone at the end."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import UsageError


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`, which is made if need be and removed again on an error.

    Raises UsageError when nothing can be written there.
    """
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".partial", dir=folder)
    except OSError as error:
        _remove(made)
        raise UsageError(
            f"output {folder}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write",
        ) from None
    try:
        with stage as path:
            yield Path(path)
    except BaseException:
        _remove(made)
        raise


def _remove(folders: list[Path]) -> None:
    for folder in folders:  # innermost first; one that holds something stays
        with contextlib.suppress(OSError):
            folder.rmdir()
