"""Store the weight of a linear as its MatMul reads it.

MatMul(x, Transpose(w[out, in]))  ->  MatMul(x, w[in, out])
"""

import onnx_ir as ir

from .driver import Done

TRANSPOSED = "blockforge.transposed"  # key in ir.Value.meta: stored with its two axes swapped


def fold_weight_transposes(model: ir.Model) -> Done:
    """Swap the axes of each weight that every reader transposes, and remove the Transposes.

    A weight that something reads as it is (a tied embedding) keeps its layout and its Transpose.
    """
    weights = [v for v in model.graph.initializers.values() if v.const_value is None]
    folded = [w for w in weights if _always_transposed(w)]
    for weight in folded:
        assert weight.shape is not None
        weight.shape = ir.Shape(list(weight.shape)[::-1])
        weight.meta[TRANSPOSED] = True
        for transpose in [use.node for use in weight.uses()]:
            transpose.outputs[0].replace_all_uses_with(weight)
            model.graph.remove(transpose, safe=True)
    return Done("fold weight transposes", len(folded))


def _always_transposed(weight: ir.Value) -> bool:
    uses = list(weight.uses())
    if not uses or weight.is_graph_output() or weight.shape is None or len(weight.shape) != 2:
        return False
    return all(
        use.node.op_type == "Transpose"
        and use.node.domain == ""
        and use.node.attributes.get_ints("perm", [1, 0]) == (1, 0)
        and not use.node.outputs[0].is_graph_output()
        for use in uses
    )
