"""First divergence: where two runs of one model part, which operator does it, and why.

diff(reference, candidate) -> Diff
"""

from .diff import DiffOptions, diff
from .record import Diff, Divergence
from .sides import GraphSide, ModuleSide, SavedSide, Side
from .sources import golden_inputs, open_bundle, open_graph, open_source, saved_tensors

__all__ = [
    "Diff",
    "DiffOptions",
    "Divergence",
    "GraphSide",
    "ModuleSide",
    "SavedSide",
    "Side",
    "diff",
    "golden_inputs",
    "open_bundle",
    "open_graph",
    "open_source",
    "saved_tensors",
]
