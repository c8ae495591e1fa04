"""A GGUF file: tensors are mapped, dequantised and brought into our layout one at a time."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from ...core.errors import ArtefactError, UsageError
from ..config import ModelConfig
from ..fields import Fields
from ..skeleton import parameter_shapes
from ..tokenizer import tokenizer_from_gguf
from .dialect import Dialect
from .gguf_config import config_from_gguf
from .gguf_names import GGUF, GGUF_ROPE_FACTORS
from .gguf_reader import Header, StoredTensor, read_header
from .protocol import as_finite, check_names, require_name

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class GgufCheckpoint:
    """Weights of a GGUF file; opened by open_gguf."""

    source: str
    config: ModelConfig
    path: Path
    metadata: Fields
    dialect: Dialect
    tensors: dict[str, StoredTensor]

    def names(self) -> list[str]:
        """Our parameter names, in the module's order."""
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of parameter `name`, from the header; UsageError for an unknown name."""
        require_name(self.source, name, self.names())
        return self.tensors[name].shape

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Parameter `name`, dequantised to float32, un-permuted, then in `dtype`; errors as Checkpoint.read."""
        require_name(self.source, name, self.names())
        tensor = torch.from_numpy(_dequantised(self.path, self.tensors[name]))
        return as_finite(self.dialect.layout(tensor, name, self.config), dtype, name, self.source)

    def tokenizer(self) -> "tokenizers.Tokenizer | None":
        """The tokenizer that the metadata holds, None where there is none; UsageError for an unknown kind."""
        return tokenizer_from_gguf(self.metadata)


def open_gguf(path: Path, source: str) -> GgufCheckpoint:
    """Open a GGUF file, reading its header only.

    Raises ArtefactError when the file is damaged or its tensors are not those of its configuration,
    UsageError for an architecture, option or quantisation type that is not supported.
    """
    header = read_header(path, source)
    for kind in {tensor.type for tensor in header.tensors}:
        _check_supported(kind, source)
    by_stored_name = {tensor.name: tensor for tensor in header.tensors}
    config = _config(path, header, by_stored_name, source)
    metadata = Fields(source, header.metadata)
    dialect = GGUF[metadata.text("general.architecture")]
    tensors: dict[str, StoredTensor] = {}
    for tensor in header.tensors:
        place = dialect.place(tensor.name)
        if place is not None:
            tensors[place.name] = tensor
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    check_names(source, config, shapes, {name: tensor.name for name, tensor in tensors.items()})
    ordered = {name: tensors[name] for name in parameter_shapes(config)}
    return GgufCheckpoint(source, config, path, metadata, dialect, ordered)


def _config(
    path: Path, header: Header, tensors: dict[str, StoredTensor], source: str
) -> ModelConfig:
    """The configuration: metadata, and what only the tensors tell."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ArtefactError(f"weights of {source}", found="missing: token_embd.weight")
    factors = tensors.get(GGUF_ROPE_FACTORS)
    return config_from_gguf(
        Fields(source, header.metadata),
        vocab_size=embedding.shape[0],
        tied="output.weight" not in tensors,
        rope_factors=None if factors is None else tuple(_dequantised(path, factors).tolist()),
    )


def _check_supported(kind: GGMLQuantizationType, source: str) -> None:
    """Raise UsageError unless the gguf package can dequantise `kind`: it is asked for one block."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        raise UsageError(
            source,
            found=f"quantisation type {kind.name}, which cannot be dequantised",
            fix="Use a file in Q4_1, Q8_0, F16 or another common type",
        ) from None


def _dequantised(path: Path, tensor: StoredTensor) -> np.ndarray:
    """One tensor's float32 values; maps only its bytes."""
    data = np.memmap(path, np.uint8, "r", tensor.offset, (tensor.size,))
    values = dequantize(data.reshape(*tensor.shape[:-1], -1), tensor.type)
    return np.require(values, np.float32, ["OWNDATA", "WRITEABLE"]).reshape(tensor.shape)
