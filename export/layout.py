"""Store the weight of a linear as its MatMul reads it.

MatMul(x, Transpose(w[out, in]))                    ->  MatMul(x, w[in, out])
MatMul(x, Transpose(w[experts, out, in]))           ->  MatMul(x, w[experts, in, out])
"""

import onnx_ir as ir

from .driver import Done

TRANSPOSED = "blockforge.transposed"  # key in ir.Value.meta: stored with its last two axes swapped

_SWAPS = {2: (1, 0), 3: (0, 2, 1)}  # rank -> the permutation that swaps the last two axes


def fold_weight_transposes(model: ir.Model) -> Done:
    """Swap the last two axes of each weight that every reader transposes, and remove the Transposes.

    A weight that something reads as it is (a tied embedding) keeps its layout and its Transpose.
    """
    weights = [v for v in model.graph.initializers.values() if v.const_value is None]
    folded = [w for w in weights if _always_transposed(w)]
    for weight in folded:
        assert weight.shape is not None
        *experts, out_features, in_features = weight.shape
        weight.shape = ir.Shape([*experts, in_features, out_features])
        weight.meta[TRANSPOSED] = True
        for transpose in [use.node for use in weight.uses()]:
            transpose.outputs[0].replace_all_uses_with(weight)
            model.graph.remove(transpose, safe=True)
    return Done("fold weight transposes", len(folded))


def _always_transposed(weight: ir.Value) -> bool:
    uses = list(weight.uses())
    rank = 0 if weight.shape is None else len(weight.shape)
    if not uses or weight.is_graph_output() or rank not in _SWAPS:
        return False
    return all(
        use.node.op_type == "Transpose"
        and use.node.domain == ""
        and tuple(use.node.attributes.get_ints("perm", [1, 0])) == _SWAPS[rank]
        and not use.node.outputs[0].is_graph_output()
        for use in uses
    )
