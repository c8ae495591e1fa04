"""Every weight of the graph against the other side's of the same name: inputs reach only some rows of a table."""

from dataclasses import dataclass

import onnx_ir as ir
import torch

from .diagnosis.weights import Difference, compare_weights
from .forced import weight_tensor
from .held import weight_by_powers
from .sides import GraphSide
from .walk import Setting


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """node: the first that reads the weight. by_powers: the difference is one power of two per row and column."""

    name: str
    node: ir.Node
    difference: Difference
    by_powers: bool = False


def differing_weights(setting: Setting) -> list[WeightDifference]:
    """Weights of two axes or more that differ beyond rounding, in the order in which nodes read them."""
    graph = setting.graph.model.graph
    order = {node: i for i, node in enumerate(graph)}
    found = []
    for name, value in graph.initializers.items():
        users = [use.node for use in value.uses() if use.node in order]
        if not users or value.const_value is None or value.dtype is None:
            continue
        if not value.dtype.is_floating_point() or value.shape is None or len(value.shape) < 2:
            continue
        reference = setting.other.weight(name)
        if reference is None:
            continue
        difference = _difference(setting, weight_tensor(value), reference)
        if difference is not None:
            first = min(users, key=lambda node: order[node])
            found.append(
                WeightDifference(
                    name, first, difference, _by_powers(weight_tensor(value), reference, first)
                )
            )
    return sorted(found, key=lambda w: order[w.node])


def _difference(setting: Setting, mine: torch.Tensor, reference: torch.Tensor) -> Difference | None:
    """A checkpoint stores a linear layer's weight the other way round; two graphs store it alike."""
    ways = [reference]
    if reference.ndim == 2 and (
        not isinstance(setting.other, GraphSide) or reference.shape != mine.shape
    ):
        ways.append(reference.T)
    ways = [way for way in ways if way.shape == mine.shape]
    if not ways or any(torch.equal(way.to(mine.dtype), mine) for way in ways):
        return None
    differences = []
    for way in ways:
        pair = (mine, way) if setting.graph_is_candidate else (way, mine)
        difference = compare_weights(*pair)
        if difference is None:
            return None
        differences.append(difference)
    return min(differences, key=lambda d: float(d.facts.get("relative", 1.0)))  # type: ignore[arg-type]


def _by_powers(mine: torch.Tensor, reference: torch.Tensor, node: ir.Node) -> bool:
    """Rows of a table that Gather reads are not undone by what reads them: there the columns alone may differ."""
    rows = node.op_type != "Gather"
    ways = (reference, reference.T) if reference.ndim == 2 else (reference,)
    return any(weight_by_powers(mine, way, rows=rows) for way in ways)
