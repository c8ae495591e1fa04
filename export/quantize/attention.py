"""The operands of attention's products: what option `attention` quantises besides the linears."""

from collections.abc import Sequence

import onnx_ir as ir

from .cache import Cache


def attention_inputs(
    model: ir.Model, caches: Sequence[Cache] = ()
) -> dict[ir.Value, list[tuple[ir.Node, int]]]:
    """The operands of attention's products, with who reads them: Attention's q, k, v; both sides of a product.

    What a cache of `caches` holds or gets is left out: it is read from FP8 already.
    """
    stored = {value for cache in caches for value in (cache.update, cache.whole)}
    found: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in model.graph:
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("Attention", "MatMul"):
            continue
        count = 3 if node.op_type == "Attention" else 2
        operands = node.inputs[:count]
        if any(v is None or v.const_value is not None or v.producer() is None for v in operands):
            continue
        made = [v.producer() for v in operands if v is not None]
        if any(n is not None and n.op_type == "DequantizeLinear" for n in made):
            continue
        for index, value in enumerate(operands):
            assert value is not None
            if value in stored:
                continue
            found.setdefault(value, []).append((node, index))
    return found
