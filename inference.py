"""Run a bundle's graph on tensors from a file: .npz or .safetensors in, the same out."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.errors import ArtefactError, UsageError

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npz", ".safetensors")


def run_file(
    bundle: Path,
    inputs: Path,
    output: Path | None = None,
    *,
    precision: str | None = None,
    target: str = "onnxruntime:cpu",
) -> list[dict[str, Any]]:
    """Run one graph on the tensors in `inputs`; write its outputs to `output` if given.

    Returns one row per output: name, dtype, shape, min, mean, max. Raises UsageError for a file or tensor
    that does not fit, ArtefactError for a damaged file, UnavailableError where the target cannot run.
    """
    from .engines.session import Session

    if output is not None:
        _check_format(output)
    feeds = _load(inputs)
    with Session(bundle, precision=precision, target=target) as session:
        outputs = session.run(feeds)
    if output is not None:
        _save(output, outputs)
    return [_row(name, array) for name, array in outputs.items()]


def _check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise UsageError(
            f"tensors in {path}", found=f"suffix {path.suffix!r}", fix=f"Use {' or '.join(FORMATS)}"
        )


def _load(path: Path) -> "dict[str, np.ndarray]":
    _check_format(path)
    if not path.is_file():
        raise UsageError(f"inputs {path}", found="no such file", fix="Name a file of tensors")
    if path.suffix == ".npz" and not zipfile.is_zipfile(path):
        raise ArtefactError(f"inputs {path}", found="cannot be read: it is no .npz archive")
    try:
        if path.suffix == ".npz":
            import numpy as np

            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        from safetensors.numpy import load_file

        return dict(load_file(path))
    except Exception as error:  # each reader has its own family of errors
        raise ArtefactError(f"inputs {path}", found=f"cannot be read: {error}") from None


def _save(path: Path, tensors: "Mapping[str, np.ndarray]") -> None:
    import numpy as np

    try:
        if path.suffix == ".npz":
            np.savez(path, **dict(tensors))  # type: ignore[arg-type]
        else:
            from safetensors.numpy import save_file

            save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path)
    except OSError as error:
        raise UsageError(f"outputs {path}", found=f"cannot write: {error.strerror}") from None


def _row(name: str, array: "np.ndarray") -> dict[str, Any]:
    import numpy as np

    wide = array.astype(np.float64)
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "min": float(wide.min()),
        "mean": float(wide.mean()),
        "max": float(wide.max()),
    }
