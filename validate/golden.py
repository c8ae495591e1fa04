"""golden.safetensors: seeded inputs and the float64 truth, so that a machine with a GPU can judge a plan alone.

    <case>/input/<name>    the whole input
    <case>/at/<name>       int64 [k, axes - 1]: which rows (all axes but the last) are stored
    <case>/output/<name>   float64 [k, last axis]: these rows of the truth

Rows are spread evenly and as many as the budget allows. The header's metadata holds a format version, the
cases, and the noise floors. Tensors only: nothing in the file can run.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..core.errors import ArtefactError
from .reference import Truth

FORMAT = "blockforge golden 1"
BUDGET = 8 << 20  # bytes of outputs in one file


@dataclass(frozen=True, slots=True)
class GoldenOutput:
    """Some rows of one output: at [k, axes - 1] are their coordinates, rows [k, last axis] the truth."""

    at: torch.Tensor
    rows: torch.Tensor

    def pick(self, output: torch.Tensor) -> torch.Tensor:
        """The same rows of a whole output."""
        return output[tuple(self.at.unbind(1))] if self.at.shape[1] else output[None]


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One case: whole inputs, some rows of each output, rms floors by (precision, output)."""

    name: str
    text: bool
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, GoldenOutput]
    floors: Mapping[str, Mapping[str, float]]  # "fp16" -> output -> rms error of PyTorch


def write_golden(path: Path, truth: Truth, *, budget: int = BUDGET) -> None:
    """Write the cases of `truth`, with the floors computed so far, in about `budget` bytes of outputs.

    Every case keeps one row of each output at least, so a vocabulary larger than the budget still works.
    """
    tensors: dict[str, torch.Tensor] = {}
    about: list[dict[str, object]] = []
    share = budget // (len(truth.cases) * len(truth.outputs))
    for case in truth.cases:
        for name, value in case.feeds.items():
            tensors[f"{case.name}/input/{name}"] = value.contiguous()
        for name, value in truth.results[case.name].items():
            at = _some_rows(value, share)
            rows = GoldenOutput(at, value).pick(value)
            tensors[f"{case.name}/at/{name}"] = at
            tensors[f"{case.name}/output/{name}"] = rows.contiguous()
        floors = {
            precision.value: {name: spread.rms for name, spread in floor.spreads[case.name].items()}
            for (precision, _io), floor in truth.floors.items()
        }
        about.append({"name": case.name, "text": case.text, "floors": floors})
    metadata = {"format": FORMAT, "cases": json.dumps(about)}
    path.write_bytes(save(tensors, metadata))


def read_golden(path: Path) -> tuple[GoldenCase, ...]:
    """Read what write_golden wrote; ArtefactError for anything else or a damaged file."""
    asked = f"golden file {path}"
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = f"format {metadata.get('format')!r}, not {FORMAT!r}"
                raise ArtefactError(asked, found=found, fix="Build the bundle again")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return tuple(_case(entry, tensors) for entry in json.loads(metadata["cases"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ArtefactError):
            raise
        found = f"it cannot be read ({error.__class__.__name__}: {error})"
        raise ArtefactError(asked, found=found, fix="Build the bundle again") from None


def _case(entry: dict, tensors: Mapping[str, torch.Tensor]) -> GoldenCase:
    name: str = entry["name"]
    parts = {
        kind: {
            key.removeprefix(f"{name}/{kind}/"): value
            for key, value in tensors.items()
            if key.startswith(f"{name}/{kind}/")
        }
        for kind in ("input", "at", "output")
    }
    outputs = {n: GoldenOutput(parts["at"][n], rows) for n, rows in parts["output"].items()}
    return GoldenCase(name, bool(entry["text"]), parts["input"], outputs, entry["floors"])


def _some_rows(value: torch.Tensor, budget: int) -> torch.Tensor:
    """Coordinates int64 [k, axes - 1] of rows spread evenly from the first to the last, k by the budget."""
    lead = value.shape[:-1]
    rows = math.prod(lead)
    row_bytes = (
        max(1, value.shape[-1] * value.element_size()) if value.dim() else value.element_size()
    )
    keep = max(1, min(rows, budget // row_bytes))
    chosen = torch.linspace(0, rows - 1, keep, dtype=torch.float64).round().long()
    if not lead:
        return torch.zeros((1, 0), dtype=torch.int64)
    return torch.stack(torch.unravel_index(chosen, lead), dim=1)
