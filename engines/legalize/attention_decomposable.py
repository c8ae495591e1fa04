"""Attention without a fused kernel -> Attention(TRT_decomposable=1): TensorRT may compute it in several kernels.

For fp32, and for head sizes below 9 or above 256 in any type. ONNX's checker refuses the attribute, so it never enters a bundle.
"""

import onnx_ir as ir

from .attention import AttentionForm, attentions

ATTRIBUTE = "TRT_decomposable"
# Head sizes that TensorRT-RTX 1.7.1 has fused kernels for; it refuses 1, 4, 8, 264, 320 and 512.
SMALLEST_FUSED, LARGEST_FUSED = 9, 256


def allow_decomposition(model: ir.Model) -> list[str]:
    """Mark every Attention of `model` that no fused kernel serves, in place."""
    marked: dict[str, list[str]] = {}
    for form in attentions(model):
        reason = _reason(form)
        if reason and ATTRIBUTE not in form.node.attributes:
            form.node.attributes[ATTRIBUTE] = ir.AttrInt64(ATTRIBUTE, 1)
            marked.setdefault(reason, []).append(str(form.node.name))
    return [
        f"{ATTRIBUTE} on {len(names)} Attention ({reason}): {names[0]}"
        + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for reason, names in marked.items()
    ]


def _reason(form: AttentionForm) -> str:
    if form.dtype == ir.DataType.FLOAT:
        return "fp32"
    last = form.q.shape[-1] if form.q.shape is not None else None
    if not isinstance(last, int) or SMALLEST_FUSED <= form.head_size(form.q) <= LARGEST_FUSED:
        return ""
    return f"head size {form.head_size(form.q)}"
