"""One file, written whole or not at all: beside its place first, then renamed into it.

write_whole(out.json, data) -> .out.json.XXXXXXXX.partial -> out.json
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .partial import SUFFIX


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, which takes the place of `path` on a clean exit and is gone otherwise.

    Raises OSError where the folder cannot be written or is full.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=SUFFIX, dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: Path, content: bytes | str) -> None:
    """Write `content` (text in UTF-8) to `path` in one step. Raises OSError, and then `path` is as it was."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
