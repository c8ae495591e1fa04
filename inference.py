"""Run a bundle's graph on tensors from files: one set of inputs or many in, as many sets of outputs out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def run_file(
    bundle: Path,
    inputs: Path | str,
    output: Path | None = None,
    *,
    precision: str | None = None,
    target: str = "onnxruntime:cpu",
    allow_script: bool = False,
) -> list[dict[str, Any]]:
    """Run one graph on every set of tensors at `inputs`; write its outputs to `output` if given.

    inputs: .npz, .safetensors, Polygraphy's JSON, a folder of them or, with allow_script, a data-loader
    script. output: as validate.tensor_files.save_tensors. Returns one row per output of each set: name,
    dtype, shape, min, mean, max (NaN for an empty one). Raises UsageError for a file or tensor that does
    not fit, ArtefactError for a damaged file, UnavailableError where the target cannot run.
    """
    from .engines.session import Session
    from .validate.tensor_files import check_output, load_tensors, save_tensors

    sets = load_tensors(inputs, allow_script=allow_script)
    if output is not None:
        check_output(output, len(sets))
    with Session(bundle, precision=precision, target=target) as session:
        results = [session.run(feeds) for feeds in sets]
    if output is not None:
        save_tensors(output, results)
    return [_row(name, array) for outputs in results for name, array in outputs.items()]


def _row(name: str, array: "np.ndarray") -> dict[str, Any]:
    import numpy as np

    wide = array.astype(np.float64) if array.size else np.full(1, np.nan)
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "min": float(wide.min()),
        "mean": float(wide.mean()),
        "max": float(wide.max()),
    }
