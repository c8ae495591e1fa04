"""Arithmetic: the region means the right thing, and its types cannot hold it.

The same region in float64 gives the reference's value; what it loses in its own types has a name.
"""

from collections.abc import Iterator

import torch

from ....graph.type_names import type_name
from ....graph.values import WIDE_FLOATS
from ..forced import Forced
from ..sides import GraphSide
from ..units import unit_of
from ..walk import judge_error
from .case import Case, Cause


def arithmetic(case: Case) -> Iterator[Cause]:
    """overflow, underflow, saturation, narrow type, cancellation, rounding."""
    forced = case.evidence.forced
    if forced.exact or not case.candidate or not case.actual.is_floating_point():
        return
    wide = Forced(forced.region, forced.model, True, forced.types)
    right = wide.compute(case.evidence.given)
    if judge_error(case.target, right, [right], case.evidence.unit).diverged:
        return
    forced.compute(case.evidence.given)
    assert forced.last is not None
    for event in forced.last.overflow:
        if event.kind in ("range", "infinite", "nan"):
            types = {str(v.name): v.dtype for n in case.region.nodes for v in n.outputs}
            kind = type_name(types.get(event.value) or case.region.value.dtype)
            yield Cause(
                "overflow",
                f"{event.count} elements of {event.value} leave the range of {kind} at {event.node}: the largest "
                f"is {event.largest:.4g}. In float64 the same operators give the reference's values",
                {"value": event.value, "largest": event.largest, "count": event.count},
                node=_inside(case, event.node),
            )
            return
    blurred = wide.compute(forced.rounded(case.evidence.given))
    if _off(blurred, case) > _off(case.actual, case) / 2:
        yield from _narrow(case)
    yield from _underflow(case, forced)
    yield from _cancellation(case, wide)
    yield Cause(
        "rounding",
        "in float64 the same operators give the reference's values: what is lost is rounding inside them",
    )


def _inside(case: Case, label: str) -> str | None:
    """The region's node that is, or calls, the node that an event names."""
    names = [n.name or "" for n in case.region.nodes]
    around = [n for n in names if label == n or label.startswith(f"{n}/")]
    return max(around, key=len, default=None)


def _off(value: torch.Tensor, case: Case) -> float:
    return float((value.double() - case.expected).square().mean())


def _narrow(case: Case) -> Iterator[Cause]:
    """The value whose narrow type the operator makes large, and the node that first narrowed it."""
    worst = case.evidence.error
    other = case.setting.other
    for value in case.region.inputs:
        name = str(value.name)
        unit = unit_of(value.dtype)
        if value.dtype not in WIDE_FLOATS or unit < 2.0**-12:
            continue
        theirs = None
        if isinstance(other, GraphSide) and (there := case.setting.mapping.pairs.get(name)):
            theirs = other.values[there].dtype
        narrower = theirs is not None and unit_of(theirs) < unit
        largest = float(case.evidence.given[name].double().abs().max())
        text = (
            f"{name} is {type_name(value.dtype)}"
            + (f", {type_name(theirs)} in the reference" if narrower else "")
            + f": numbers up to {largest:.4g} are rounded by up to {largest * unit:.2g}, and "
            f"{case.region.node.op_type} makes that a relative error of {worst.relative:.2g}"
        )
        producer = value.producer()
        yield Cause(
            "narrow type" if narrower else "ill-conditioned",
            text,
            {"value": name, "largest": largest, "rounding": largest * unit},
            node=producer.name if narrower and producer is not None else None,
        )
        if narrower:
            return


def _underflow(case: Case, forced: Forced) -> Iterator[Cause]:
    zero = (case.actual == 0) & (case.expected != 0)
    share = float(zero.double().mean())
    if share > 0.01:
        yield Cause(
            "underflow",
            f"{share:.0%} of the elements become zero: the reference's are as small as "
            f"{float(case.expected[zero].abs().max()):.2g}",
            {"share": share},
        )


def _cancellation(case: Case, wide: Forced) -> Iterator[Cause]:
    """A sum or difference whose result is far smaller than its terms."""
    for node in case.region.nodes:
        if node.op_type not in ("Add", "Sub", "Sum", "ReduceSum", "ReduceMean"):
            continue
        names = [str(v.name) for v in node.inputs if v is not None]
        known = [case.evidence.given[n].double() for n in names if n in case.evidence.given]
        if not known:
            continue
        terms = max(float(t.abs().max()) for t in known)
        size = float(case.expected.square().mean().sqrt())
        if node is case.region.node and terms > 100 * size > 0:
            yield Cause(
                "cancellation",
                f"terms of up to {terms:.4g} leave a result of {size:.4g}: their rounding is all that is left",
                {"terms": terms, "result": size},
            )


def not_finite(case: Case) -> Iterator[Cause]:
    """Values that are not finite without an overflow that explains them (another meaning, or saved values)."""
    bad = ~torch.isfinite(case.actual) & torch.isfinite(case.expected)
    if bool(bad.any()):
        at = [int(i) for i in bad.nonzero()[0]]
        yield Cause(
            "overflow",
            f"{int(bad.sum())} elements are not finite, the first at {at}, where the reference has "
            f"{float(case.expected[tuple(at)]):.4g}",
            {"count": int(bad.sum()), "index": at},
            confirmed=False,
        )
