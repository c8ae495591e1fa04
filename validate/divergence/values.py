"""Two sets of values without an operator between them: the first whose error grows beyond what came before."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from ...core.dtypes import DType
from ...core.errors import UsageError
from ...graph.type_names import DataType
from ..spread import Spread
from .diagnosis import Cause
from .measure import LocalError
from .outputs import compare_tensors, must_show, real_pairs
from .plan_side import PlanSide
from .record import Diff, Divergence
from .sides import Feeds, Side
from .units import unit_of, unit_of_torch

GROWTH = 8.0  # times the largest error before it, while that lies within START
START = 64.0  # unit roundoffs that the first value may be off, and its worst element of its largest


def compare_values(
    reference: Side,
    candidate: Side,
    feeds: Feeds,
    source: str,
    dtype: DType | None = None,
    tolerance: float = 1.0,
) -> Diff:
    """Compare by name, in the reference's order.

    dtype: the type to judge floats by, in place of the wider roundoff of the two that were saved and of what an engine
    computed in. Outputs and arrays of a file must be on both sides, and are compared by the rules of outputs.py; another
    value counts where both have its name, kind and shape. Raises UsageError where no name is shared.
    """
    sides = (reference, candidate)
    needed = {name for side in sides for name in must_show(side, feeds)}
    truth: dict[str, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    names: dict[str, None] = {}
    candidate.run(
        feeds, lambda name, value: found.update({name: real_pairs(value)}), None, exact=False
    )
    candidate.release()

    def note(name: str, value: torch.Tensor) -> None:
        names[name] = None
        if (
            name in found or name in needed
        ):  # others are not held: of a large model they would not fit
            truth[name] = real_pairs(value)

    reference.run(feeds, note, None, exact=True)
    reference.release()
    if not truth.keys() & found.keys():
        raise UsageError(
            f"compare {reference.label} with {candidate.label}",
            found="no value of the same name on both sides",
            fix=f"The reference has {', '.join(list(names)[:5])}; the candidate {', '.join(list(found)[:5])}",
        )
    inner = [n for n in truth.keys() & found.keys() - needed if not _alike(truth[n], found[n])]
    total = len(found)
    for name in inner:
        del truth[name], found[name]
    found = {n: value for n, value in found.items() if n in truth or n in needed}
    unit = _yardstick(sides, dtype)
    compared = compare_tensors(truth, found, unit)
    errors: dict[str, LocalError] = {}
    first: Divergence | None = None
    before = 0.0
    for name, spread in ((n, compared.spreads[n]) for n in truth if n in compared.spreads):
        relative = _relative(spread)
        roundoff = unit(truth[name], found[name])
        allowed = tolerance * START * roundoff
        allowed = max(allowed, GROWTH * min(before, allowed))
        over = max(relative, _of_the_largest(spread, truth[name])) / allowed
        errors[name] = LocalError(over, "whole", (), relative, before, roundoff)
        if first is None and errors[name].diverged:
            text = (
                f"its relative error is {relative:.3g}, the largest before it {before:.3g}, and its worst element "
                f"{spread.worst_actual:.6g}, not {spread.worst_expected:.6g}, at {list(spread.worst_index)}, judged by a "
                f"roundoff of {roundoff:.2g} (--dtype names the type that was computed in, where it was saved in a wider "
                "one): without a graph on either side no operator can be tried"
            )
            cause = Cause("unexplained", text, {"relative": relative, "before": before}, False)
            first = Divergence(
                name, name, name, "value", (), (), errors[name], cause, before, relative
            )
        before = max(before, relative)
    totals: Mapping[str, float] = {n: e.relative for n, e in errors.items()}
    return Diff(
        reference=reference.label,
        candidate=candidate.label,
        inputs=source,
        mapping="names",
        compared=len(truth.keys() & found.keys()),
        values=total,
        other_values=len(names),
        first=first,
        also=tuple(n for n, e in errors.items() if e.diverged and (not first or n != first.value))[
            :16
        ],
        totals=totals,
        errors=errors,
        findings=compared.findings,
    )


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_kind = one.is_floating_point() == other.is_floating_point()
    return same_kind and one.shape == other.shape and bool(one.numel())


def _yardstick(
    sides: Sequence[Side], dtype: DType | None
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """The unit roundoff of two float tensors: of `dtype`, else the widest of theirs and of the engines'."""
    if dtype is not None:
        asked = unit_of(DataType(dtype.onnx))
        return lambda _one, _other: asked
    engines = [unit_of(DataType(s.computes.onnx)) for s in sides if isinstance(s, PlanSide)]
    return lambda one, other: max(unit_of_torch(one.dtype), unit_of_torch(other.dtype), *engines)


def _relative(spread: Spread) -> float:
    """rms error over rms truth; infinite where either is not finite."""
    return _over(math.sqrt(spread.square_sum), math.sqrt(spread.truth_square))


def _of_the_largest(spread: Spread, truth: torch.Tensor) -> float:
    """The worst element's error over the truth's largest element: one wrong element hides in a mean."""
    wide = truth.double()
    return _over(spread.max_abs, float(wide.where(wide.isfinite(), 0.0).abs().max()))


def _over(error: float, size: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / size if size else (0.0 if error == 0 else math.inf)
