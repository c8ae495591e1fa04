"""The largest magnitude of every value of an FP32 graph, over a set of inputs.

feeds -> typed evaluator, one run each -> value name -> max |x|
"""

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir
import torch

from ...core.progress import Progress, Step, silent
from ...graph.evaluator import TypedEvaluator

Feeds = Mapping[str, torch.Tensor]


def measure_ranges(
    model: ir.Model, feeds: Iterable[Feeds], progress: Progress = silent
) -> dict[str, float]:
    """Run the graph on each of `feeds`; graph inputs are measured too.

    Infinities (masks) and NaN (rows that a mask hides whole) are left out: the largest finite magnitude counts.
    """
    evaluator = TypedEvaluator(model)
    largest: dict[str, float] = {}
    calls = {str(v.name): _into(largest, str(v.name)) for v in _function_results(model)}
    for number, fed in enumerate(feeds):
        progress(Step("measure ranges", number, detail=f"run {number + 1}"))
        found = evaluator.run(fed, watch=calls)
        for name, size in found.largest.items():
            largest[name] = max(largest.get(name, 0.0), size)
        for name, tensor in fed.items():
            _into(largest, name)(tensor)
    return largest


def _function_results(model: ir.Model) -> list[ir.Value]:
    """Values that local functions give: the evaluator measures what is inside them."""
    nodes = [n for g in model.graphs() for n in g if n.op_identifier() in model.functions]
    return [v for n in nodes for v in n.outputs if v.name]


def _into(largest: dict[str, float], name: str) -> Callable[[torch.Tensor], None]:
    def note(tensor: torch.Tensor) -> None:
        if not tensor.is_floating_point() or not tensor.numel():
            return
        finite = tensor[torch.isfinite(tensor)]
        size = float(finite.abs().max()) if finite.numel() else 0.0
        largest[name] = max(largest.get(name, 0.0), size)

    return note
