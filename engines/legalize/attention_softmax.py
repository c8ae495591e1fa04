"""Attention(softmax_precision=p) -> Attention: TensorRT refuses the attribute, whatever it says.

The precision inside its kernels is its own choice, so the line this leaves in the record matters: a graph that must have
an fp32 softmax spells it out. A request for a narrower softmax than the inputs is an error.
"""

import onnx_ir as ir

from ...core.errors import BuildError
from .attention import attentions


def drop_softmax_precision(model: ir.Model) -> list[str]:
    """Remove the attribute from every Attention of `model`, in place; BuildError for one that asks for fp16 or bf16."""
    changed = []
    for form in attentions(model):
        precision = form.node.attributes.get_int("softmax_precision", 0)
        if "softmax_precision" not in form.node.attributes:
            continue
        asked = ir.DataType(precision)
        if asked not in (ir.DataType.FLOAT, form.dtype):
            raise BuildError(
                f"legalise node {form.node.name!r} (Attention)",
                found=f"softmax_precision {asked.name} on {form.dtype.name} inputs",
                fix="TensorRT chooses the precision of its softmax: leave the attribute out",
            )
        del form.node.attributes["softmax_precision"]
        changed.append(f"{form.node.name}: dropped softmax_precision={asked.name}")
    return changed
