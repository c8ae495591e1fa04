"""Quantisation: numbers clipped at the end of the type's range, and the scale that would hold them."""

from collections.abc import Iterator

from ....graph.rounding import LARGEST
from .case import Case, Cause

FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 0.5, 0.25, 0.125, 0.0625)


def quantised(case: Case) -> Iterator[Cause]:
    """A scale that is too small (saturation) or too large (too few steps are used)."""
    nodes = [n for n in case.region.nodes if n.op_type == "QuantizeLinear"]
    scales = {str(n.inputs[1].name) for n in nodes if n.inputs[1] is not None}
    own = case.evidence.forced.weights
    for name in sorted(scales & own.keys()):
        fits = (f for f in FACTORS if case.repaired(weights={name: own[name] * f}))
        best = next(fits, None)
        if best is None:
            continue
        yield _cause(case, name, best)
        return


def _cause(case: Case, name: str, factor: float) -> Cause:
    """factor: one that brings the error into the noise; where numbers are clipped, the largest says how many times."""
    forced = case.evidence.forced
    scale = float(forced.weights[name].double().abs().max())
    facts: dict[str, object] = {"scale": scale, "factor": factor}
    if factor < 1:
        text = f"the quantisation scale {name} ({scale:.4g}) is {1 / factor:g} times too large: few of the steps are used"
        return Cause("quantisation scale", text, facts, node=case.reader(name))
    forced.compute(case.evidence.given)
    clipped = [e for e in (forced.last.overflow if forced.last else ()) if e.kind == "saturated"]
    text = f"the quantisation scale {name} ({scale:.4g}) is too small"
    types = {str(v.name): v.dtype for node in case.region.nodes for v in node.outputs}
    for event in clipped[:1]:
        dtype = types.get(event.value)
        end = LARGEST.get(dtype, event.largest) if dtype is not None else event.largest
        facts["factor"] = event.largest / end
        text += (
            f": {event.count} elements of {event.value} are clipped, the largest is {event.largest:.4g} and "
            f"the type ends at {end:g} ({event.largest / end:.3g} times)"
        )
    return Cause("saturation", text, facts, node=case.reader(name))
