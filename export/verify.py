"""Prove that the written graph is the module at sizes other than the one it was traced at.

    for each size:  graph(x) in exact arithmetic  =  module(x) in exact arithmetic

Both sides compute in float64 whatever the graph's types, so that rounding cannot hide a wrong axis, nor a
wrong axis pass for rounding. What fails is narrowed down to one axis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch

from ..core.errors import UsageError
from ..core.shapes import format_shapes
from ..graph.evaluator import TypedEvaluator
from ..graph.io import load_model
from .axes import Input, Sizes, axis_positions, named_axes, trace_sizes
from .exact import in_float64

Module = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]

# Largest error over the RMS of the expected output. float64 itself is near 1e-12, but a constant that the graph
# holds in float32 is exact to 2^-24 only, which a RoPE angle multiplies by the position (1000: 6e-5). A wrong
# axis, length or branch moves outputs by their own size.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Verified:
    """The sizes that agreed, and the largest error among them (see TOLERANCE)."""

    sizes: tuple[Sizes, ...]
    worst: float


def verify(path: Path, module: Module, inputs: Sequence[Input], sizes: Sequence[Sizes]) -> Verified:
    """Compare the graph at `path` with `module` on random inputs at each of `sizes`.

    Raises UsageError naming input, axis, size and reason at the first size where they differ, where one of them
    fails, or where an output has another shape than the graph declares.
    """
    model = load_model(path)
    evaluator = TypedEvaluator(model, exact=True)
    judge = _Judge(evaluator, tuple(model.graph.outputs), module, tuple(inputs))
    worst = 0.0
    for at in sizes:
        outcome = judge.outcome(at)
        if isinstance(outcome, str):
            raise _narrowed(judge, at, outcome)
        worst = max(worst, outcome)
    return Verified(tuple(sizes), worst)


@dataclass(frozen=True, slots=True)
class _Judge:
    evaluator: TypedEvaluator
    declared: tuple[ir.Value, ...]  # the graph's outputs
    module: Module
    inputs: tuple[Input, ...]

    def outcome(self, sizes: Sizes) -> float | str:
        """The error at `sizes`, or in words why graph and module differ."""
        generator = torch.Generator().manual_seed(1)
        feeds = {i.name: i.sample(sizes, generator) for i in self.inputs}
        try:
            with torch.no_grad(), in_float64():
                result = self.module(*feeds.values())
        except Exception as error:  # whatever the user's code raises at a size that it cannot take
            return f"the module itself refuses this size ({_words(error)})"
        expected = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        try:
            outputs = self.evaluator.run(feeds).outputs
        except UsageError as error:
            return f"the graph fails where the module answers ({error.asked}: {error.found})"
        worst = 0.0
        for value, right in zip(self.declared, expected, strict=True):
            found = outputs[str(value.name)]
            if fault := _shape_fault(value, found, right, sizes):
                return fault
            error_size = relative_error(found, right)
            if not error_size <= TOLERANCE:
                return f"wrong values in output {value.name!r} (relative error {error_size:.3g})"
            worst = max(worst, error_size)
        return worst


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |actual - expected| over the RMS of `expected`; equal infinities and two NaNs differ by nothing.

    Infinite when only one of the two is NaN or infinite, or when the expected values are all zero and the others not.
    """
    a, e = actual.double(), expected.double()
    same = (a == e) | (a.isnan() & e.isnan())
    if bool(same.all()):
        return 0.0
    finite = e.isfinite()
    rms = e[finite].square().mean().sqrt()
    worst = (a - e)[~same].abs().max() / rms
    return float("inf") if worst.isnan() else float(worst)


def _shape_fault(
    value: ir.Value, found: torch.Tensor, right: torch.Tensor, sizes: Sizes
) -> str | None:
    name = str(value.name)
    if found.shape != right.shape:
        shapes = [format_shapes({name: tuple(t.shape)}) for t in (found, right)]
        return f"the graph gives {shapes[0]}, the module {shapes[1]}"
    for position, dim in enumerate(value.shape or ()):
        declared = dim if isinstance(dim, int) else sizes.get(str(dim.value), right.shape[position])
        if declared != right.shape[position]:
            return f"output {name!r} declares {dim} for axis {position}, but has {right.shape[position]}"
    return None


def _narrowed(judge: _Judge, at: Sizes, outcome: str) -> UsageError:
    """Blame the one axis that fails when only it leaves the traced size, all that moved where none does alone."""
    traced = trace_sizes(judge.inputs)
    if isinstance(basic := judge.outcome(traced), str):
        at, outcome = traced, basic
    moved = [name for name in at if at[name] != traced[name]]
    for name in moved:
        alone = judge.outcome({**traced, name: at[name]})
        if isinstance(alone, str):
            moved, outcome, at = [name], alone, {**traced, name: at[name]}
            break
    axes = named_axes(judge.inputs)
    where = "; ".join(f"{n!r} = {at[n]} ({axis_positions(judge.inputs, n)})" for n in moved)
    held = ", ".join(f"{n} {size}" for n, size in traced.items())
    ranges = ", ".join(f"{n} {axes[n].min}..{axes[n].max or ''}" for n in moved)
    return UsageError(
        f"dynamic axis {where}" if where else "export at the traced sizes",
        found=f"{outcome}; the graph was traced at {held}",
        fix=f"Compute with x.shape only, without branches on it, or narrow the range ({ranges})",
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
