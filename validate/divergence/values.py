"""Two sets of values without an operator between them: the first whose error grows beyond what came before."""

from collections.abc import Mapping

import torch

from ...core.dtypes import DType
from ...core.errors import UsageError
from ...graph.type_names import DataType
from .diagnosis import Cause
from .measure import LocalError
from .record import Diff, Divergence
from .sides import Feeds, Side
from .units import unit_of, unit_of_torch

GROWTH = 8.0  # times the largest error before it
START = 64.0  # unit roundoffs that the first value may be off


def compare_values(
    reference: Side, candidate: Side, feeds: Feeds, source: str, dtype: DType | None
) -> Diff:
    """Compare by name, in the reference's order.

    dtype: the type that the candidate computed in, where its own hides it. Raises UsageError where no name and
    shape is shared.
    """
    truth: dict[str, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    names: dict[str, None] = {}
    candidate.run(feeds, found.__setitem__, None, exact=False)
    candidate.release()

    def note(name: str, value: torch.Tensor) -> None:
        names[name] = None
        if name in found:  # others are not held: of a large model they would not fit
            truth[name] = value

    reference.run(feeds, note, None, exact=True)
    reference.release()
    shared = [n for n in truth if truth[n].shape == found[n].shape]
    shared = [n for n in shared if truth[n].is_floating_point() and found[n].is_floating_point()]
    if not shared:
        raise UsageError(
            f"compare {reference.label} with {candidate.label}",
            found="no floating value of the same name and shape on both sides",
            fix=f"The reference has {', '.join(list(names)[:5])}; the candidate {', '.join(list(found)[:5])}",
        )
    errors: dict[str, LocalError] = {}
    first: Divergence | None = None
    before = 0.0
    for name in shared:
        unit = max(unit_of_torch(truth[name].dtype), unit_of_torch(found[name].dtype))
        if dtype is not None:
            unit = max(unit, unit_of(DataType(dtype.onnx)))
        relative = _relative(truth[name], found[name])
        allowed = max(START * unit, GROWTH * before)
        errors[name] = LocalError(relative / allowed, "whole", (), relative, before, unit)
        if first is None and errors[name].diverged:
            text = (
                f"its relative error is {relative:.3g}, the largest before it {before:.3g}: "
                "without a graph on either side no operator can be tried"
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
        compared=len(shared),
        values=len(found),
        other_values=len(names),
        first=first,
        also=tuple(n for n, e in errors.items() if e.diverged and (not first or n != first.value))[
            :16
        ],
        totals=totals,
        errors=errors,
    )


def _relative(reference: torch.Tensor, actual: torch.Tensor) -> float:
    r, a = reference.double(), actual.double()
    error = float((a - r).square().mean().sqrt())
    size = float(r.square().mean().sqrt())
    if error != error:
        return torch.inf
    return error / size if size else (0.0 if error == 0 else torch.inf)
