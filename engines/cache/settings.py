"""Where the cache is and how large it may grow: an argument, else two environment variables."""

import os
import re
from pathlib import Path

from ...core.errors import UsageError
from .store import EngineCache

FOLDER, SIZE = "BLOCKFORGE_CACHE", "BLOCKFORGE_CACHE_SIZE"
DEFAULT_SIZE = "20GiB"
UNITS = {"": 1, "B": 1, **{f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", start=1)}}


def open_cache(folder: Path | None = None, size: str | None = None) -> EngineCache | None:
    """The cache in `folder`, else in $BLOCKFORGE_CACHE; None where neither names one.

    size: the most it may hold, e.g. 20GiB; else $BLOCKFORGE_CACHE_SIZE. Raises UsageError for a size that is none.
    """
    named = folder or os.environ.get(FOLDER)
    if not named:
        return None
    limit = size or os.environ.get(SIZE) or DEFAULT_SIZE
    return EngineCache(Path(named), bytes_from_text(limit))


def bytes_from_text(text: str) -> int:
    """Read `512MiB`, `1.5GiB` or a number of bytes; UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)", text.strip())
    if match is None:
        raise UsageError(f"size {text!r}", found="no size", fix="Write 20GiB, 512MiB or bytes")
    return int(float(match[1]) * UNITS[match[2]])
