"""Loop without a condition -> Loop with the condition true, which ONNX means by leaving it out (ONNX operator Loop).

TensorRT's parser looks the absent value up and stops.
"""

import onnx_ir as ir

from .edit import Inserter


def give_loops_conditions(model: ir.Model) -> list[str]:
    """Give every Loop of `model` that has a trip count and no condition the constant true, in place."""
    changed = []
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Loop" or node.domain or len(node.inputs) < 2:
            continue
        if node.inputs[1] is None:
            node.replace_input_with(1, Inserter(node).constant(True, ir.DataType.BOOL))
            changed.append(f"{node.name or node.op_type}: condition true")
    return changed
