"""Weights as the typed graph stores them, one in memory at a time: number * 2^-bits, rounded once to its type.

bits: one for the whole weight, or one for each place along an axis.
"""

import math

import numpy as np
import onnx_ir as ir
import torch

from ...graph.rounding import round_to
from ...graph.values import arithmetic, value_from_numpy
from .options import PrecisionOptions
from .subnormal import NORMAL, Faint


class Weights:
    """The largest magnitudes of weights, and what FP16's subnormals take of them, read once each."""

    def __init__(self, options: PrecisionOptions) -> None:
        self._limit = options.limit
        self._subnormal = options.smallest == NORMAL
        self._faint: dict[ir.Value, Faint] = {}
        self._largest: dict[ir.Value, float] = {}
        self._norms: dict[tuple[ir.Value, int], float] = {}

    def size(self, weight: ir.Value) -> int:
        """Number of elements."""
        return weight.const_value.size if weight.const_value is not None else 0

    def largest(self, weight: ir.Value) -> float:
        """The largest finite magnitude."""
        if weight not in self._largest:
            numbers = _read(weight.const_value)
            ends = torch.stack(torch.aminmax(numbers)) if numbers.numel() else numbers
            if not bool(torch.isfinite(ends).all()):
                ends = numbers[torch.isfinite(numbers)]
            self._largest[weight] = float(ends.abs().max()) if ends.numel() else 0.0
            if self._subnormal:
                self._faint[weight] = Faint.of_weight(numbers)
        return self._largest[weight]

    def faint(self, weight: ir.Value) -> Faint:
        """What FP16's subnormals take of the weight; nothing where the 16-bit type is BF16."""
        self.largest(weight)
        return self._faint.get(weight, Faint())

    def largest_along(self, weight: ir.Value, axis: int) -> np.ndarray:
        """The largest finite magnitude at each place along `axis`, read anew."""
        largest: np.ndarray = self.along(weight, axis).abs().amax(1).numpy()
        return largest

    def rms_along(self, weight: ir.Value, axis: int) -> torch.Tensor:
        """Root mean square at each place along `axis`, read anew."""
        numbers = _read(weight.const_value)
        others = [a for a in range(numbers.ndim) if a != axis % numbers.ndim]
        if not others:
            return numbers.abs()
        norms: torch.Tensor = torch.linalg.vector_norm(numbers, dim=others)
        return norms * math.sqrt(len(norms) / max(1, numbers.numel()))

    def along(self, weight: ir.Value, axis: int) -> torch.Tensor:
        """The weight as [places along `axis`, the rest], read anew; 0 for what is not finite."""
        numbers = _read(weight.const_value)
        finite = torch.where(torch.isfinite(numbers), numbers, 0.0).movedim(axis, 0)
        return finite.reshape(len(finite), -1)

    def longest_column(self, weight: ir.Value, axis: int) -> float:
        """The largest Euclidean norm along `axis`."""
        if (weight, axis) not in self._norms:
            norms = torch.linalg.vector_norm(_read(weight.const_value), dim=axis)
            self._norms[weight, axis] = float(norms.max()) if norms.numel() else 0.0
        return self._norms[weight, axis]

    def fits(self, weight: ir.Value, bits: int) -> bool:
        """Whether the weight, divided by 2^bits, stays in the 16-bit range."""
        return bits >= 0 or self.largest(weight) * 2.0**-bits <= self._limit

    def rescaled_along(self, weight: ir.Value) -> None:
        """Note that places of the weight were divided by powers of two of their own."""
        self._largest.pop(weight, None)

    def rescaled(self, weight: ir.Value, bits: int) -> None:
        """Note that the weight was divided by 2^bits."""
        if weight in self._largest:
            self._largest[weight] *= 2.0**-bits
        held = self._faint[weight].scaled(-bits) if weight in self._faint else None
        if held is not None:
            self._faint[weight] = held
        elif self._subnormal:
            self._largest.pop(weight, None)  # to be read anew


def scaled_tensor(
    tensor: ir.TensorProtocol, bits: int | np.ndarray, name: str | None = None
) -> ir.LazyTensor:
    """The tensor divided by 2^bits, computed when it is read. bits: a number, or an array that broadcasts to the tensor."""
    factor = torch.tensor(np.ldexp(np.float32(1), -np.asarray(bits, np.int32)))

    def compute() -> ir.TensorProtocol:
        scaled = _read(tensor) * factor
        return ir.tensor(scaled.numpy(), dtype=tensor.dtype, name=name or tensor.name)

    return ir.LazyTensor(
        compute, dtype=tensor.dtype, shape=_shape(tensor), name=name or tensor.name
    )


def typed_tensor(
    tensor: ir.TensorProtocol, dtype: ir.DataType, limit: float | None, name: str
) -> ir.LazyTensor:
    """The tensor rounded to `dtype` when it is read; finite numbers first moved into [-limit, limit] where given."""

    def compute() -> ir.TensorProtocol:
        numbers = _read(tensor)
        if limit is not None:
            finite = torch.isfinite(numbers)
            numbers = torch.where(finite, numbers.clamp(-limit, limit), numbers)
        rounded = round_to(numbers, dtype)
        assert isinstance(rounded, torch.Tensor)
        return ir.tensor(_array(rounded, dtype), dtype=dtype, name=name)

    return ir.LazyTensor(compute, dtype=dtype, shape=_shape(tensor), name=name)


def _shape(tensor: ir.TensorProtocol) -> ir.Shape:
    return ir.Shape(tensor.shape.numpy())


def _read(tensor: ir.TensorProtocol | None) -> torch.Tensor:
    assert tensor is not None
    value = value_from_numpy(np.asarray(tensor.numpy()), ir.DataType(tensor.dtype))
    return arithmetic(value)


def _array(tensor: torch.Tensor, dtype: ir.DataType) -> np.ndarray:
    bits = tensor.contiguous().view(torch.int16) if tensor.itemsize == 2 else tensor.contiguous()
    return bits.numpy().view(dtype.numpy())
