"""Proof that a fused model computes what it did: both evaluated in float64, at two shapes, and compared.

The second shape has inputs of 3e4, whose squares pass float16's range; rows of zeros and of small numbers are in both.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ...core.dtypes import dtype_from_onnx
from ...core.errors import UsageError
from ...graph.evaluator import TypedEvaluator

SHAPES = ((2, 5, 1.0), (3, 4, 3e4))  # the first axis, every other one, the size of the numbers
MOST = 2**28  # elements of an input that is still evaluated
SMALL = 1e-3  # of the row after the zeros: an epsilon of 1e-6 counts as much as its square
# Largest error over the output's largest element. Both sides are exact but for constants, which one of them may
# have folded in float32: 6e-8 each, which a chain of layers multiplies.
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome: a difference in words (empty where there is none), and at how many shapes the model ran."""

    fault: str
    shapes: int


def compare(before: ir.Model, after: ir.Model) -> Compared:
    """Evaluate both models on the same random inputs and compare every output."""
    if any(_elements(v) > MOST for v in before.graph.inputs if v.const_value is None):
        return Compared("", 0)
    try:
        exact = TypedEvaluator(before, exact=True), TypedEvaluator(after, exact=True)
        return _compared(before, *exact)
    except (
        UsageError
    ):  # an operator of somebody else's domain, an input of a type that we do not have
        return Compared("", 0)


def _elements(value: ir.Value) -> int:
    """The number of elements that an input has at least."""
    return math.prod(d for d in value.shape or () if isinstance(d, int))


def _compared(model: ir.Model, before: TypedEvaluator, after: TypedEvaluator) -> Compared:
    shapes = 0
    for batch, length, scale in SHAPES:
        for feeds in _feeds(model, batch, length, scale):
            try:
                expected = before.run(feeds).outputs
            except UsageError:  # a shape, or a number, that the model itself does not take
                continue
            shapes += 1
            where = f"at {batch} x {length}"
            try:
                found = after.run(feeds).outputs
            except UsageError as error:
                return Compared(f"the result does not run {where}: {error.asked}", shapes)
            for name, right in expected.items():
                if fault := _difference(found[name], right):
                    return Compared(f"output {name!r} {fault} {where}", shapes)
            break
    return Compared("", shapes)


def _feeds(
    model: ir.Model, batch: int, length: int, scale: float
) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs by name, with whole numbers below 100; then, for a model with smaller tables, below 2."""
    inputs = [v for v in model.graph.inputs if v.const_value is None]
    for limit in (100, 2):
        generator = torch.Generator().manual_seed(batch)
        sizes: dict[str, int] = {}
        yield {str(v.name): _draw(v, sizes, batch, length, scale, limit, generator) for v in inputs}


def _draw(
    value: ir.Value,
    sizes: dict[str, int],
    batch: int,
    length: int,
    scale: float,
    limit: int,
    generator: torch.Generator,
) -> torch.Tensor:
    shape = []
    for axis, dim in enumerate(value.shape or ()):
        size = batch if axis == 0 else length
        if not isinstance(dim, int):
            size = sizes.setdefault(str(dim.value), size) if dim.value else size
        shape.append(dim if isinstance(dim, int) else size)
    dtype = dtype_from_onnx(value.dtype or ir.DataType.FLOAT).torch
    if "mask" in str(value.name).lower() and not dtype.is_floating_point:
        mask = torch.ones(shape, dtype=torch.int64)
        if mask.ndim > 1 and min(mask.shape) > 1:
            mask[-1, ..., :1] = 0
        return mask.to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(2 if dtype == torch.bool else limit, shape, generator=generator).to(
            dtype
        )
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    if drawn.ndim > 1 and drawn.shape[-1]:
        rows = drawn.view(-1, drawn.shape[-1])
        rows[0] = 0
        rows[1:2] *= SMALL / scale
    return drawn


def _difference(found: torch.Tensor, right: torch.Tensor) -> str:
    if found.shape != right.shape:
        return f"has shape {list(found.shape)}, not {list(right.shape)}"
    if found.dtype != right.dtype:
        return f"has type {found.dtype}, not {right.dtype}"
    a, e = found.double(), right.double()
    same = (a == e) | (a.isnan() & e.isnan())
    if bool(same.all()):
        return ""
    finite = e.isfinite()
    if not bool(a[finite].isfinite().all()) or bool((~finite & ~same).any()):
        return "is not finite elsewhere"
    error = float((a - e)[finite].abs().max() / e[finite].abs().max().clamp(min=1e-30))
    return f"differs by {error:.1e} of its largest element" if error > TOLERANCE else ""
