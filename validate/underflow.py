"""Values whose numbers rounding made zero, added up over cases: which lost the largest shares, and how much each layer lost."""

import re
from collections.abc import Iterable

from ..core.evidence import UnderflowRecord
from ..graph.evaluator import Underflow

LISTED = 12  # values
LAYER = re.compile(r"(?:^|[./])(layers\.\d+)(?=[./]|$)")


class UnderflowTally:
    """Adds up what each run reported."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, events: Iterable[Underflow]) -> None:
        """Count one run."""
        for event in events:
            count, elements = self._found.get((event.value, event.node), (0, 0))
            total = (count + event.count, elements + event.elements)
            self._found[event.value, event.node] = total

    def listed(self) -> tuple[UnderflowRecord, ...]:
        """The values that lost the largest shares of their elements, largest first."""
        records = [
            UnderflowRecord(value=value, node=node, count=count, elements=elements)
            for (value, node), (count, elements) in self._found.items()
        ]
        return tuple(sorted(records, key=lambda r: -r.count / r.elements)[:LISTED])

    def by_layer(self) -> dict[str, int]:
        """Elements of all values that lie in a layer by their node's or their own name; "" for the others."""
        layers: dict[str, int] = {}
        for (value, node), (count, _) in self._found.items():
            match = LAYER.search(node) or LAYER.search(value)
            layer = match[1] if match else ""
            layers[layer] = layers.get(layer, 0) + count
        return layers
