"""The bundle's golden inputs and outputs in numpy, for warming up and for the last check before a server is ready.

golden.safetensors (validate/golden.py writes it) -> Sample, ...; a server needs no torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open

from ...core.bundle import Bundle
from ...core.dtypes import dtype_from_name
from ...core.errors import ArtefactError
from ...core.manifest import TensorRecord

FORMAT = "blockforge golden 1"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of an output: at [k, axes - 1] are their coordinates, truth [k, last axis] in float64."""

    at: np.ndarray
    truth: np.ndarray

    def pick(self, output: np.ndarray) -> np.ndarray:
        """The same rows of a whole output, in float64."""
        rows = output[tuple(self.at.T)] if self.at.shape[1] else output[None]
        return np.asarray(rows, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One golden case; floors: "fp16" -> output -> the rms error that PyTorch makes in that type."""

    name: str
    feeds: Mapping[str, np.ndarray]
    outputs: Mapping[str, Rows]
    floors: Mapping[str, Mapping[str, float]]

    def feeds_for(self, inputs: Sequence[TensorRecord]) -> dict[str, np.ndarray]:
        """The inputs in the types that the graph declares."""
        return {
            record.name: np.ascontiguousarray(
                self.feeds[record.name].astype(dtype_from_name(record.dtype).numpy)
            )
            for record in inputs
        }


def samples_of(bundle: Bundle) -> tuple[Sample, ...]:
    """The golden cases of `bundle`, none where it was exported only; ArtefactError for a damaged file."""
    if bundle.manifest.golden is None:
        return ()
    path = bundle.file(bundle.manifest.golden)
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"format {metadata.get('format')!r}, not {FORMAT!r}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return tuple(_sample(case, tensors) for case in json.loads(metadata["cases"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(
            f"golden file {path}",
            found=f"it cannot be read ({error.__class__.__name__}: {error})",
            fix="Build the bundle again",
        ) from None


def _sample(case: dict, tensors: Mapping[str, np.ndarray]) -> Sample:
    name: str = case["name"]

    def part(kind: str) -> dict[str, np.ndarray]:
        start = f"{name}/{kind}/"
        return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

    at = part("at")
    rows = {output: Rows(at[output], truth) for output, truth in part("output").items()}
    return Sample(name, part("input"), rows, case["floors"])
