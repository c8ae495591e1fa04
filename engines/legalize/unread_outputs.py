"""LayerNormalization with outputs that nothing reads -> with one output, which is all that TensorRT's parser takes."""

import onnx_ir as ir


def drop_unread_outputs(model: ir.Model) -> list[str]:
    """Drop the unread mean and deviation of every LayerNormalization of `model`, in place."""
    changed = []
    for node in list(model.graph.all_nodes()):
        if node.op_type != "LayerNormalization" or node.domain or len(node.outputs) < 2:
            continue
        if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
            continue
        node.resize_outputs(1)
        changed.append(f"{node.name}: dropped outputs that nothing reads")
    return changed
