"""Which file holds what: the suffix decides, a folder holds one set after another."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...core.errors import ArtefactError, UsageError
from ...core.whole_file import write_whole
from .npz import load_npz, npz_bytes
from .numbers import checked
from .polygraphy_json import dump_inputs, load_json
from .safetensors_file import load_safetensors, safetensors_bytes
from .script import run_script

Tensors = dict[str, np.ndarray]
FORMATS = (".npz", ".safetensors", ".json")
DIGITS = 10  # of a file's number in a folder, as Polygraphy counts
LOADERS: dict[str, Callable[[Path], Tensors]] = {
    ".npz": load_npz,
    ".safetensors": load_safetensors,
}


def load_tensors(
    path: str | Path, *, runner: str | None = None, allow_script: bool = False
) -> list[Tensors]:
    """The sets of tensors at `path`, one dictionary each, in order.

    path: a .npz or .safetensors file (one set), Polygraphy's JSON (inputs, or RunResults), a folder of such
    files, taken in the order of their names, or a data-loader script `data_loader.py[:function]`.
    runner: whose outputs, where RunResults hold several runners. allow_script: run a script; it is the
    caller's promise that the code is trusted. Arrays are row-major, writable and in native byte order.
    Raises UsageError for a path that does not fit, ArtefactError for a file that is damaged, empty or holds
    anything but numbers.
    """
    path, function = _split(path)
    asked = f"tensors in {path}"
    if not path.exists():
        raise UsageError(asked, found="no such file", fix="Name a file or folder of tensors")
    try:
        if path.is_dir():
            sets = _load_folder(path, runner)
        elif path.suffix == ".py":
            if not allow_script:
                fix = "Allow it where you trust the script"
                raise UsageError(asked, found="a script, and reading it runs it", fix=fix)
            sets = run_script(path, function)
        else:
            sets = _load_file(path, runner)
    except (OSError, MemoryError) as error:
        raise UsageError(asked, found=f"cannot read: {error or 'out of memory'}") from None
    if not sets:
        raise ArtefactError(asked, found="no set of tensors in it")
    for at, tensors in enumerate(sets):
        if not tensors:
            raise ArtefactError(asked, found=f"set {at} is empty: no tensor in it")
    return sets


def save_tensors(
    path: str | Path, tensors: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]
) -> None:
    """Write one set, or several, whole or not at all; an earlier file is replaced.

    path: .npz or .safetensors for one set, .json (Polygraphy's inputs) for any number, a path without a
    suffix for a new folder with one .safetensors file a set. Raises UsageError for a path or a type that
    does not fit, ArtefactError for values that are no numbers.
    """
    path = Path(path)
    given = [tensors] if isinstance(tensors, Mapping) else list(tensors)
    asked = f"save tensors to {path}"
    if not given or not all(given):
        raise UsageError(asked, found="no tensor to save")
    sets = [
        {name: checked(np.asarray(v), f"save {name!r}") for name, v in one.items()} for one in given
    ]
    if not all(name for one in sets for name in one):
        raise UsageError(asked, found="a tensor without a name")
    check_output(path, len(sets))
    try:
        if not path.suffix:
            _save_folder(path, sets)
        elif path.suffix == ".json":
            write_whole(path, dump_inputs(sets).encode())
        else:
            make = npz_bytes if path.suffix == ".npz" else safetensors_bytes
            write_whole(path, make(sets[0]))
    except OSError as error:
        raise UsageError(asked, found=f"cannot write: {error.strerror}") from None


def check_output(path: Path, sets: int = 1) -> None:
    """Raise UsageError unless save_tensors can write that many sets to a path of this suffix."""
    if path.suffix:
        _check_suffix(path)
    if path.suffix in LOADERS and sets > 1:
        fix = "Use .json, or a folder (a path without a suffix)"
        found = f"{sets} sets, and {path.suffix} holds one"
        raise UsageError(f"save tensors to {path}", found=found, fix=fix)


def _check_suffix(path: Path) -> None:
    if path.suffix not in FORMATS:
        found = f"suffix {path.suffix!r}"
        raise UsageError(f"tensors in {path}", found=found, fix=f"Use {', '.join(FORMATS)}")


def _split(path: str | Path) -> tuple[Path, str]:
    """`loader.py:function` -> the path and the function's name; `load_data` where none is named."""
    text, colon, function = str(path).rpartition(":")
    if colon and text.endswith(".py") and function.isidentifier():
        return Path(text), function
    return Path(path), "load_data"


def _load_file(path: Path, runner: str | None) -> list[Tensors]:
    _check_suffix(path)
    if path.suffix == ".json":
        return load_json(path, runner)
    if runner is not None:
        raise UsageError(f"runner {runner!r} in {path}", found="only RunResults name runners")
    return [LOADERS[path.suffix](path)]


def _load_folder(folder: Path, runner: str | None) -> list[Tensors]:
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    return [tensors for path in files for tensors in _load_file(path, runner)]


def _save_folder(folder: Path, sets: Sequence[Tensors]) -> None:
    """A new folder, written beside its place and renamed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"save tensors to {folder}", found="it exists", fix="Name a new folder or an empty one"
        )
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = Path(scratch) / "sets"
        made.mkdir()
        for at, tensors in enumerate(sets):
            write_whole(made / f"{at:0{DIGITS}}.safetensors", safetensors_bytes(tensors))
        made.replace(folder)
