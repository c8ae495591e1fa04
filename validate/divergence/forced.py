"""Teacher forcing: run one region on given inputs, and again with rounding drawn anew.

compute(given)       what the region makes of right inputs
redraw(given, k)     the same with inputs and weights moved by one to two unit roundoffs
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from ...graph.evaluator import Evaluation, TypedEvaluator
from ...graph.rounding import round_to
from ...graph.type_names import DataType
from ...graph.values import TORCH_TYPES, WIDE_FLOATS, Narrow, value_from_numpy
from .regions import Region, floating_weights, region_model
from .units import QUANTISED, unit_of, unit_of_torch

Tensors = Mapping[str, torch.Tensor]

PATTERN = 65521  # a prime: no axis of a weight is in step with it
COARSE = 2.0**-6  # unit roundoff of 8-bit types lies above: one of them is already 6 %


@dataclass
class Forced:
    """A region ready to run.

    types: element type of each value that ran. edit: changes the region's graph, whose weights are inputs, first.
    """

    region: Region
    model: ir.Model
    exact: bool
    types: Mapping[str, DataType]
    edit: Callable[[ir.Graph], object] | None = None
    evaluator: TypedEvaluator = field(init=False)
    weights: dict[str, torch.Tensor] = field(init=False)
    last: Evaluation | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        small = region_model(self.region, self.model, feed_weights=True)
        if self.edit is not None:
            self.edit(small.graph)
        self.evaluator = TypedEvaluator(small, exact=self.exact)
        self.weights = {str(w.name): weight_tensor(w) for w in floating_weights(self.region)}

    def unit(self) -> float:
        """Unit roundoff of the narrowest type that the region computes in."""
        types = [self.types.get(str(v.name), v.dtype) for v in self.region.values()]
        wide = [unit_of(t) for t in types if t in WIDE_FLOATS]
        narrow = [unit_of(t) for t in types if t in QUANTISED and t not in _WHOLE]
        if any(node.op_type in _QUANTISES for node in self.region.nodes):
            narrow += [unit_of(t) for t in types if t in _WHOLE]
        if self.exact:
            wide = [unit_of(DataType.DOUBLE)]
        return max([*wide, *narrow], default=0.0)

    def compute(self, given: Tensors, weights: Tensors | None = None) -> torch.Tensor:
        """The region's value from `given` (input name -> any floats; rounded to the declared types here)."""
        feeds = self.rounded(given)
        self.last = self.evaluator.run({**feeds, **self.weights, **(weights or {})})
        return self.last.outputs[self.region.name]

    def redraw(self, given: Tensors, seed: int, unit: float) -> torch.Tensor:
        """`compute` with every floating input and weight changed by one to two unit roundoffs.

        Less would often round back to the same number.
        """
        moved = {n: _moved(t, unit, f"{seed}/{n}") for n, t in given.items()}
        weights = {
            n: _moved(t, max(unit_of_torch(t.dtype), unit), f"{seed}/{n}").to(t.dtype)
            for n, t in self.weights.items()
        }
        return self.compute(moved, weights)

    def rounded(self, given: Tensors) -> dict[str, torch.Tensor]:
        """`given` as the region takes it: each in its declared type."""
        return {str(v.name): self._typed(v, given[str(v.name)]) for v in self.region.inputs}

    def _typed(self, value: ir.Value, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.types.get(str(value.name), value.dtype)
        if dtype is None or not tensor.is_floating_point():
            return tensor if dtype is None else tensor.to(TORCH_TYPES[dtype])
        if self.exact and dtype in WIDE_FLOATS:
            return tensor.double()
        rounded = round_to(tensor, dtype)
        return rounded.data if isinstance(rounded, Narrow) else rounded


_WHOLE = frozenset({DataType.INT8, DataType.UINT8, DataType.INT4, DataType.UINT4})
_QUANTISES = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


def weight_tensor(value: ir.Value) -> torch.Tensor:
    """An initializer as a tensor of its own type."""
    assert value.const_value is not None
    tensor = value_from_numpy(value.const_value.numpy(), DataType(value.const_value.dtype))
    return tensor.data if isinstance(tensor, Narrow) else tensor


def _moved(tensor: torch.Tensor, unit: float, key: str) -> torch.Tensor:
    """x (1 + 2 u r), of 8-bit types x (1 + u r), 1/2 <= |r| <= 1 with either sign; the same for the same key and shape.

    The draw repeats every PATTERN elements: drawn in full it took nine tenths of a comparison's time.
    """
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return tensor
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    size = min(tensor.numel(), PATTERN)
    draw = torch.rand(size, generator=generator, dtype=torch.float64) - 0.5
    draw += draw.sign() / 2
    steps = 1 if unit > COARSE else 2
    wide = torch.float32 if tensor.dtype.itemsize == 2 else torch.float64
    factors = (1 + steps * unit * draw).to(wide)
    flat = tensor.reshape(-1).to(wide)
    whole = flat.numel() - flat.numel() % max(size, 1)
    parts = [(flat[:whole].view(-1, size) * factors).view(-1)] if size else []
    rest = flat[whole:]
    return torch.cat([*parts, rest * factors[: rest.numel()]]).reshape(tensor.shape)
