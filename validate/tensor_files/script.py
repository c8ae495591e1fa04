"""A Polygraphy data-loader script: a Python file whose `load_data()` gives sets of tensors. Reading it runs it."""

import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import UsageError
from .numbers import checked, unique


def run_script(path: Path, function: str) -> list[dict[str, np.ndarray]]:
    """Run the file and collect what its function gives; UsageError says where it failed."""
    asked = f"inputs from {path}"
    loader = SourceFileLoader(f"data_loader_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    try:
        loader.exec_module(module)
        load = getattr(module, function, None)
        sets = None if load is None else list(load())
    except Exception as error:  # whatever the user's code raises
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}, line {line.lineno}"
        found = f"{error.__class__.__name__} in {where}: {error}"
        raise UsageError(asked, found=found, fix="Mend the script") from None
    if sets is None:
        has = ", ".join(n for n, v in vars(module).items() if callable(v)) or "none"
        raise UsageError(
            asked, found=f"no function {function}; it has {has}", fix=f"Write {path}:FUNCTION"
        )
    return [_tensors(entry, f"set {at} from {path}") for at, entry in enumerate(sets)]


def _tensors(entry: Any, asked: str) -> dict[str, np.ndarray]:
    try:
        pairs = list(entry.items())
    except (AttributeError, TypeError):
        found = f"{type(entry).__name__}, not a dictionary of tensors by name"
        raise UsageError(asked, found=found) from None
    if not all(isinstance(name, str) for name, _ in pairs):
        raise UsageError(asked, found="a name that is no text")
    return {name: _array(v, f"{name!r}, {asked}") for name, v in unique(pairs, asked).items()}


def _array(value: Any, asked: str) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return checked(np.asarray(value), asked)
    if type(value).__module__ == "torch":
        from ..runners import numpy_from_tensor

        return checked(numpy_from_tensor(value.cpu()), asked)
    raise UsageError(asked, found=f"{type(value).__name__}, not an array", fix="Give numpy arrays")
