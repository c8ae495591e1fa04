"""Stream weights into the graph's external data: one tensor in memory at a time.

read(name) -> check -> swap the last two axes where the graph stores them swapped -> model.onnx.data
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import onnx_ir as ir
import torch
from torch import nn

from ..core.dtypes import dtype_from_onnx
from ..core.errors import ArtefactError
from ..core.progress import Progress, Step
from ..graph.io import data_file
from .layout import TRANSPOSED

Read = Callable[
    [str, torch.dtype], torch.Tensor
]  # raises ArtefactError for numbers that do not fit
_CHUNK_BYTES = 16 * 2**20
_MOST_NAMED = 8


def stream_weights(model: ir.Model, read: Read, path: Path, progress: Progress) -> None:
    """Write every weight of `model` to the external data file `path`; the initializers refer to it afterwards.

    `read` gives a weight in torch's layout and the asked type, or raises ArtefactError when it holds NaN,
    infinity or what the type cannot hold. All of those are gathered into one ArtefactError that names them;
    no file is left then, nor after any other exception.
    """
    weights = [v for v in model.graph.initializers.values() if v.const_value is None]
    if not weights:
        return
    faults: list[ArtefactError] = []
    with data_file(path) as data:
        for number, value in enumerate(weights):
            progress(Step("write weights", number, len(weights), str(value.name)))
            try:
                rows = _Rows(_stored(value, read))
            except ArtefactError as error:
                faults.append(error)
                continue
            if not faults:
                value.const_value = data.append(rows, value)
        if faults:
            raise _gathered(faults)
    progress(Step("write weights", len(weights), len(weights)))


def read_from_module(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Read:
    """Read the tensors that tracing `module` found. Parameters must be finite; a buffer (a mask, say) is what it is."""
    parameters = {name for name, _ in module.named_parameters()}

    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = tensors[name]
        bad = tensor.numel() - int(torch.isfinite(tensor).sum()) if name in parameters else 0
        if bad:
            raise ArtefactError(
                f"weights of {type(module).__name__}",
                found=f"{name} holds {bad} values that are NaN or infinite, of {tensor.numel()}",
            )
        return tensor.to(dtype)

    return read


def mapped_weights(model: ir.Model) -> dict[str, torch.Tensor]:
    """The weights of `model` in torch's layout, as private memory maps of its external data: no bytes are copied."""
    files: dict[str, torch.Tensor] = {}
    weights = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if tensor.path not in files:
            size = Path(tensor.path).stat().st_size
            files[tensor.path] = torch.from_file(
                tensor.path, shared=False, size=size, dtype=torch.uint8
            )
        start = tensor.offset or 0
        part = files[tensor.path][start : start + tensor.nbytes]
        typed = part.view(dtype_from_onnx(tensor.dtype).torch).view(tensor.shape.numpy())
        weights[name] = typed.mT if value.meta.get(TRANSPOSED) else typed
    return weights


def _stored(value: ir.Value, read: Read) -> torch.Tensor:
    """The weight as the graph stores it, not yet contiguous."""
    assert value.name and value.shape is not None and value.dtype is not None
    weight = read(value.name, dtype_from_onnx(value.dtype).torch)
    stored = weight.mT if value.meta.get(TRANSPOSED) else weight
    if tuple(stored.shape) != value.shape.numpy():
        raise ArtefactError(
            f"weight {value.name}",
            found=f"{value.name} has shape {list(weight.shape)}, which the graph does not have",
            fix="The checkpoint does not fit its configuration",
        )
    return stored


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor that writes itself in parts, so that a transposed one is never copied whole."""

    tensor: torch.Tensor

    def tofile(self, file: IO[bytes], /) -> None:
        tensor = self.tensor.detach().cpu()
        if tensor.ndim == 0:
            tensor = tensor.reshape(1)
        row_bytes = max(1, tensor[:1].numel() * tensor.element_size())
        for part in torch.split(tensor, max(1, _CHUNK_BYTES // row_bytes)):
            file.write(part.contiguous().view(torch.uint8).numpy().data)


def _gathered(faults: list[ArtefactError]) -> ArtefactError:
    if len(faults) == 1:
        return faults[0]
    named = "; ".join(fault.found for fault in faults[:_MOST_NAMED])
    more = f"; and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
    return ArtefactError(
        faults[0].asked, found=f"{len(faults)} tensors: {named}{more}", fix=faults[0].fix
    )
