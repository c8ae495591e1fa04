"""Are the weights in the graph the checkpoint's, every one, bit for bit? Inputs reach only some of an embedding's rows.

initializer bytes  =  checkpoint tensor (times 2^-e) in the graph's type, as stored or with its last two axes swapped;
                      of a packed weight, several of them side by side along the output axis
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from ..core.conversion import AxisExponents
from ..core.dtypes import dtype_from_onnx
from ..core.manifest import GateRecord, VerdictRecord
from ..core.progress import Progress, Step, silent
from ..graph.io import load_model
from ..model.checkpoints import Checkpoint

GATE = "weights unlike the checkpoint's"
NAMED = 5  # in the verdict's note


def unlike_weights(
    checkpoint: Checkpoint,
    model: Path,
    progress: Progress = silent,
    *,
    exponents: Mapping[str, int] | None = None,
    by_channel: Mapping[str, Sequence[AxisExponents]] | None = None,
    packed: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[str, ...]:
    """Names of the weights in the ONNX file that differ from the checkpoint's tensor of the same name.

    exponents: weight -> e where the graph holds the number times 2^-e; by_channel: the same along axes, as stored.
    packed: initializer -> the tensors in it.
    Quantised weights have other names.
    A graph in which no weight carries a parameter's name proves nothing and is reported as such. One tensor
    is in memory at a time. Raises ArtefactError for a file or checkpoint that cannot be read.
    """
    initializers = load_model(model).graph.initializers
    known = set(checkpoint.names())
    shared: dict[str, tuple[str, ...]] = {
        name: (name,) for name in checkpoint.names() if name in initializers
    }
    shared |= {n: parts for n, parts in (packed or {}).items() if known.intersection(parts)}
    if not shared:
        return ("no weight has the name of a parameter",)
    scaled = _Scaled(exponents or {}, by_channel or {})
    unlike = []
    for number, (name, parts) in enumerate(shared.items()):
        progress(Step("compare weights", number, len(shared), name))
        tensor = initializers[name].const_value if name in initializers else None
        whole = known.issuperset(parts)
        if tensor is None or not whole or not _equal(tensor, checkpoint, parts, scaled):
            unlike.append(name)
    progress(Step("compare weights", len(shared), len(shared)))
    return tuple(unlike)


def gate_weights(verdict: VerdictRecord, unlike: tuple[str, ...]) -> VerdictRecord:
    """The verdict with one more gate; one without gates (a second opinion) stays as it is."""
    if not verdict.gates:
        return verdict
    gate = GateRecord(name=GATE, value=len(unlike), relation="<=", limit=0, passed=not unlike)
    some = ", ".join(unlike[:NAMED]) + (", ..." if len(unlike) > NAMED else "")
    notes = (f"{GATE}: {some}",) if unlike else ()
    return verdict.model_copy(
        update={
            "gates": (*verdict.gates, gate),
            "passed": verdict.passed and gate.passed,
            "notes": (*verdict.notes, *notes),
        }
    )


@dataclass(frozen=True, slots=True)
class _Scaled:
    """How the graph holds the numbers of the checkpoint."""

    exponents: Mapping[str, int]
    by_channel: Mapping[str, Sequence[AxisExponents]]

    def read(
        self, checkpoint: Checkpoint, name: str, dtype: torch.dtype, swapped: bool
    ) -> torch.Tensor:
        """The tensor as it should be held; swapped: the graph has its last two axes the other way round."""
        axes = self.by_channel.get(name, ())
        if name not in self.exponents and not axes:
            return checkpoint.read(name, dtype)
        numbers = checkpoint.read(name)
        bits = torch.full([1] * numbers.ndim, self.exponents.get(name, 0))
        order = list(range(numbers.ndim))
        if swapped:
            order[-2:] = reversed(order[-2:])
        for row in axes:
            axis = order[row.axis]
            along = [row.exponents.get(place, 0) for place in range(numbers.shape[axis])]
            bits = bits + torch.tensor(along).reshape(
                [-1 if a == axis else 1 for a in range(numbers.ndim)]
            )
        return torch.ldexp(numbers, -bits).to(dtype)


def _equal(
    tensor: ir.TensorProtocol, checkpoint: Checkpoint, parts: Sequence[str], scaled: _Scaled
) -> bool:
    stored = np.frombuffer(tensor.tobytes(), np.uint8)
    dtype = dtype_from_onnx(int(tensor.dtype)).torch
    return any(
        np.array_equal(stored, _bytes(way)) for way in _ways(checkpoint, parts, dtype, scaled)
    )


def _ways(
    checkpoint: Checkpoint, parts: Sequence[str], dtype: torch.dtype, scaled: _Scaled
) -> Iterator[torch.Tensor]:
    """What the graph may hold: the tensors side by side, as stored or with the last two axes swapped."""
    weight = torch.cat([scaled.read(checkpoint, name, dtype, False) for name in parts])
    yield weight
    if weight.ndim >= 2:
        if any(name in scaled.by_channel for name in parts):
            weight = torch.cat([scaled.read(checkpoint, name, dtype, True) for name in parts])
        yield weight.mT


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    flat: np.ndarray = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat
