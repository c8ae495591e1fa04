"""All that hides keys -> one additive mask, unless is_causal says it alone.

    mask and is_causal       -> mask + Where(j <= i, 0, hidden)
    nonpad_kv_seqlen         -> Where(j < nonpad, 0, hidden), is_causal aligned to its end
    bool mask, 16-bit        -> Where(mask, 0, hidden)

TensorRT refuses mask and is_causal together. TensorRT-RTX 1.7.1 builds nonpad_kv_seqlen and then ignores it ("Unused
Input"), which attends to padding. A bool mask makes it plan ten kernels where an additive one needs one.
"""

import onnx_ir as ir

from .attention import (
    INT64,
    AttentionForm,
    additive,
    attentions,
    frontier_mask,
    padding_mask,
)
from .edit import Inserter

MASK, NONPAD = 3, 6  # input positions


def merge_masks(model: ir.Model) -> list[str]:
    """Give every Attention of `model` at most one of mask and is_causal, in place."""
    changed = []
    for form in attentions(model):
        is_bool = form.mask is not None and form.mask.dtype == ir.DataType.BOOL
        both = form.mask is not None and form.is_causal
        if not (both or is_bool or form.nonpad is not None):
            continue
        parts = [
            name
            for name, there in (
                ("bool mask" if is_bool else "mask", form.mask is not None),
                ("is_causal", form.is_causal),
                ("nonpad_kv_seqlen", form.nonpad is not None),
            )
            if there
        ]
        _set_mask(form, _sum(form, Inserter(form.node)))
        changed.append(f"{form.node.name}: {' and '.join(parts)} as one additive mask")
    return changed


def _sum(form: AttentionForm, at: Inserter) -> ir.Value:
    keeps: list[ir.Value] = []
    keys = form.length(at, form.k) if form.is_causal or form.nonpad is not None else None
    if form.nonpad is not None:
        assert keys is not None
        keeps.append(padding_mask(form, at, keys, form.nonpad))
    if form.is_causal:
        assert keys is not None
        keeps.append(frontier_mask(form, at, keys, _offset(form, at)))
    masks = [additive(form, at, keep) for keep in keeps]
    if form.mask is not None:
        is_bool = form.mask.dtype == ir.DataType.BOOL
        masks.insert(0, additive(form, at, form.mask) if is_bool else form.mask)
    total = masks[0]
    for mask in masks[1:]:
        total = at.op("Add", [total, mask], dtype=form.dtype)
    return total


def _offset(form: AttentionForm, at: Inserter) -> ir.Value | None:
    """How many keys precede the first query: nonpad[b] - S as [B, 1, 1, 1], None for 0."""
    if form.nonpad is None:
        return None
    sizes = at.op("Reshape", [form.nonpad, at.constant([-1, 1, 1, 1], INT64)], dtype=INT64)
    return at.op("Sub", [sizes, form.length(at, form.q)], dtype=INT64)


def _set_mask(form: AttentionForm, mask: ir.Value) -> None:
    node = form.node
    if len(node.inputs) <= MASK:
        node.resize_inputs(MASK + 1)
    node.replace_input_with(MASK, mask)
    if len(node.inputs) > NONPAD:
        node.resize_inputs(MASK + 1)
    node.attributes.pop("is_causal", None)
