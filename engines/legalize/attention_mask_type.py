"""Attention with a mask of another type -> the mask in the type of the queries, its lowest numbers clipped.

    Attention(q: fp16, k, v, mask: fp32) -> Attention(q, k, v, Cast(Max(mask, hidden)))

ONNX gives the mask a type of its own; TensorRT adds it to the scores as it is and refuses the sum. Clipped at `HIDDEN`
(attention.py), since a cast of fp32's lowest number is -inf in fp16; a hidden key weighs nothing either way.
"""

import onnx_ir as ir

from .attention import BOOL, HIDDEN, attentions
from .attention_mask import MASK
from .edit import Inserter

WIDTH = {
    ir.DataType.FLOAT16: 1,
    ir.DataType.BFLOAT16: 2,
    ir.DataType.FLOAT: 3,
    ir.DataType.DOUBLE: 4,
}


def cast_masks(model: ir.Model) -> list[str]:
    """Give every additive mask of `model` the type of its queries, in place."""
    changed = []
    for form in attentions(model):
        mask, dtype = form.mask, form.dtype
        if mask is None or mask.dtype in (None, BOOL, dtype):
            continue
        at, source = Inserter(form.node), mask.dtype
        assert source is not None
        if WIDTH.get(source, 0) > WIDTH.get(dtype, 0):  # a wider range
            mask = at.op("Max", [mask, at.constant(HIDDEN[dtype], source)], dtype=source)
        mask = at.op("Cast", [mask], dtype=dtype, to=int(dtype))
        form.node.replace_input_with(MASK, mask)
        changed.append(f"{form.node.name}: mask cast from {source.name} to {dtype.name}")
    return changed
