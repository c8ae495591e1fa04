"""Weights of a model as tensors: mapped from their file when first used, never copied where torch can share."""

import onnx_ir as ir
import torch

from ...core.errors import ArtefactError, UsageError
from ..type_names import DataType
from ..values import WIDE_FLOATS, Narrow, arithmetic, data_type_of, value_from_numpy


class Weights:
    """Reads initializers; with `cache`, keeps the tensors that needed a conversion for later runs.

    Without it a converted weight lives only as long as the step that uses it: memory stays near the file's size
    plus one weight.
    """

    def __init__(self, *, exact: bool, cache: bool) -> None:
        self._exact, self._cache = exact, cache
        self._kept: dict[tuple[ir.Value, bool], torch.Tensor | Narrow] = {}
        self.lent: set[int] = set()  # addresses of memory that belongs to files and to this cache

    def read(self, value: ir.Value) -> torch.Tensor | Narrow:
        """The initializer in its own type, or in fp64 where floats are exact."""
        kept = self._kept.get((value, False))
        if kept is not None:
            return kept
        tensor = tensor_of(value)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if self._exact and data_type_of(tensor) in WIDE_FLOATS and tensor.dtype != torch.float64:
            return self._keep((value, False), tensor.to(torch.float64))
        self.lent.add(tensor.untyped_storage().data_ptr())
        return tensor

    def widened(self, value: ir.Value, tensor: torch.Tensor | Narrow) -> torch.Tensor:
        """`arithmetic(tensor)` of the initializer `value`."""
        if not self._cache:
            return arithmetic(tensor)
        kept = self._kept.get((value, True))
        if kept is None:
            kept = self._keep((value, True), arithmetic(tensor))
        assert isinstance(kept, torch.Tensor)
        return kept

    def _keep(self, key: tuple[ir.Value, bool], tensor: torch.Tensor) -> torch.Tensor:
        if self._cache:
            self._kept[key] = tensor
            self.lent.add(tensor.untyped_storage().data_ptr())
        return tensor


def tensor_of(value: ir.Value) -> torch.Tensor | Narrow:
    """The constant that `value` holds; raises UsageError where it has none, ArtefactError where its file is gone."""
    constant = value.const_value
    if constant is None:
        raise UsageError(
            f"value {value.name!r}", found="neither computed, nor an input, nor a weight"
        )
    try:
        array = constant.numpy()
    except (OSError, ValueError) as error:
        raise ArtefactError(f"weight {value.name!r}", found=str(error)) from error
    return value_from_numpy(array, DataType(constant.dtype))
