"""Total errors: how far a value lies off when each side runs by itself, for layers, outputs, and around a divergence.

relative = rms(actual - reference) / rms(reference)
"""

import re
from collections.abc import Mapping

import torch

from .record import Divergence
from .sides import GraphSide
from .walk import Setting

LAYER = re.compile(r"layers\.\d+")


def reported(graph: GraphSide) -> tuple[str, ...]:
    """The values whose total errors a comparison reports: the outputs of the layers, and of the graph."""
    outputs = [str(v.name) for v in graph.model.graph.outputs]
    return (*(n for n in graph.values if LAYER.fullmatch(n) and n not in outputs), *outputs)


def totals_around(
    setting: Setting, known: Mapping[str, float], found: Divergence | None
) -> dict[str, float]:
    """`known`, and the same of what a divergence reads and gives: both sides run once more for those."""
    if found is None:
        return dict(known)
    pairs = setting.mapping.pairs
    names = ({found.value, *found.reads} & pairs.keys()) - known.keys()
    if not names:
        return dict(known)
    theirs: dict[str, torch.Tensor] = {}
    wanted = frozenset(pairs[n] for n in names)
    setting.other.run(setting.feeds, theirs.__setitem__, wanted, exact=setting.exact_other)
    totals = dict(known)

    def note(name: str, value: torch.Tensor) -> None:
        their = theirs.get(pairs[name])
        error = None if their is None else setting.total(value, their)
        if error is not None:
            totals[name] = error

    setting.graph.run(setting.feeds, note, names, exact=setting.exact_graph)
    return totals
