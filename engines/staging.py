"""A hidden folder for half-written files: what is in it is moved out when whole, the rest is gone at the end."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import UsageError
from ..core.partial import partial_folder


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`, which is made if need be and removed again on an error.

    What dead processes left half-written there under the same name is removed first.
    Raises UsageError when nothing can be written there.
    """
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stage = stack.enter_context(partial_folder(folder, name))
        except OSError as error:
            _remove(made)
            raise UsageError(
                f"output {folder}",
                found=f"cannot write there: {error.strerror}",
                fix="Name a folder you may write",
            ) from None
        try:
            yield stage
        except BaseException:
            stack.close()
            _remove(made)
            raise


def _remove(folders: list[Path]) -> None:
    for folder in folders:  # innermost first; one that holds something stays
        with contextlib.suppress(OSError):
            folder.rmdir()
