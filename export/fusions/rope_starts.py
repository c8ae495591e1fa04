"""Where a rotation may be: a sum of two products, or pairs of lanes times small matrices."""

import onnx_ir as ir

from ..algebra.facts import Facts


def is_product_sum(facts: Facts, value: ir.Value | None) -> bool:
    """Whether `value` adds or subtracts two products: half of a rotation."""
    node = facts.peel(value).producer() if value is not None else None
    return (
        node is not None
        and node.domain == ""
        and node.op_type in ("Add", "Sub")
        and all(_is_product(facts, v) for v in node.inputs)
    )


def starts_rotation(facts: Facts, node: ir.Node) -> bool:
    """Whether the lanes of a node's output may be those of a rotation, or of a part of it."""
    if node.op_type in ("Add", "Sub"):
        return is_product_sum(facts, node.outputs[0])
    return _multiplies_pairs(facts, node)


def _multiplies_pairs(facts: Facts, node: ir.Node) -> bool:
    """Whether a node multiplies pairs of lanes by matrices, or adds up such products."""
    dims = facts.dims(node.outputs[0]) or ()
    if node.op_type == "MatMul":
        return len(dims) > 3 and dims[-2:] in ((2, 1), (1, 2))
    if node.op_type == "Einsum":
        return len(node.inputs) == 2 and dims[-1:] == (2,)
    if node.op_type == "ReduceSum" and (facts.dims(node.inputs[0]) or ())[-1:] == (2,):
        return _is_product(facts, node.inputs[0])
    return False


def _is_product(facts: Facts, value: ir.Value | None) -> bool:
    node = facts.peel(value).producer() if value is not None else None
    if node is not None and node.op_type == "Neg" and node.inputs[0] is not None:
        node = facts.peel(node.inputs[0]).producer()
    return node is not None and node.op_type == "Mul" and node.domain == ""
