"""What must stay wide because its numbers pass the 16-bit range even after scaling: the fewest nodes that do.

a value beyond the range: the node that makes it and the nodes that read it; a weight beyond it: the nodes that read it
a value wholly below the smallest normal number, unless it is only added to others: likewise
"""

from collections.abc import Container, Mapping

import onnx_ir as ir

from .options import PrecisionOptions
from .structure import Reasons, all_nodes, is_constant, is_float
from .weights import Weights


def islands(
    model: ir.Model,
    sizes: Mapping[ir.Value, float],
    wide: Reasons,
    weights: Weights,
    options: PrecisionOptions,
) -> Reasons:
    """The nodes outside `wide` that cannot be 16 bit, each with the number that says so.

    sizes: the largest magnitude of each value as the graph holds it.
    """
    found: Reasons = {}
    small = {value for value, size in sizes.items() if 0 < size < options.smallest}
    for node in all_nodes(model.graph):
        if node in wide:
            continue
        for value in (*node.inputs, *node.outputs):
            if value is None or not is_float(value):
                continue
            constant = is_constant(value)
            size = weights.largest(value) if constant else sizes.get(value, 0.0)
            if size > options.limit and not only_hides(node, value):
                found.setdefault(node, f"{value.name} reaches {size:.4g}")
            elif value in small and not constant and not only_added(value, small, options):
                found.setdefault(node, f"{value.name} stays below {size:.4g}")
    return found


def only_added(
    value: ir.Value, small: Container[ir.Value | None], options: PrecisionOptions
) -> bool:
    """Whether a small value counts with sums alone that are not `small` too; an output in FP32 shows it as it is."""
    shown = value.is_graph_output() and options.io == "keep"
    return not shown and all(
        use.node.op_type in ("Add", "Sub", "Sum") and use.node.outputs[0] not in small
        for use in value.uses()
    )


def only_hides(node: ir.Node, value: ir.Value) -> bool:
    """A constant that a mask or a clip reads is moved into the range instead."""
    return is_constant(value) and node.op_type in (
        *("Add", "Sub", "Max", "Min", "Clip", "Where", "Attention", "Expand", "Pad", "Concat"),
        *("Reshape", "Unsqueeze", "Squeeze", "Slice", "Trilu", "Tile", "Identity"),
    )
