"""All that hides keys -> one additive mask, unless is_causal says it alone.

    mask and is_causal       -> mask + Where(j <= i, 0, hidden)
    nonpad_kv_seqlen         -> Where(j < nonpad, 0, hidden), is_causal aligned to its end
    left/right_window_size   -> Where(i - left <= j, 0, hidden), Where(j <= i + right, 0, hidden)
    bool mask                -> Where(mask, 0, hidden)

TensorRT refuses mask and is_causal together. TensorRT-RTX 1.7.1 builds nonpad_kv_seqlen ("Unused Input") and windows
(opset 25) and then ignores them, without an error. A bool mask makes it plan ten kernels where an additive one needs one.
"""

import onnx_ir as ir

from .attention import (
    INT64,
    POSITIONAL,
    AttentionForm,
    additive,
    attentions,
    padding_mask,
    position_masks,
)
from .edit import Inserter

MASK, NONPAD = 3, 6  # input positions


def merge_masks(model: ir.Model) -> list[str]:
    """Give every Attention of `model` at most one of mask and is_causal, in place."""
    changed = []
    for form in attentions(model):
        parts = [name for name, there in _parts(form) if there]
        if parts in ([], ["mask"], ["is_causal"]):
            continue
        _set_mask(form, _sum(form, Inserter(form.node)))
        changed.append(f"{form.node.name}: {' and '.join(parts)} as one additive mask")
    return changed


def _parts(form: AttentionForm) -> list[tuple[str, bool]]:
    """What hides keys in this node."""
    is_bool = form.mask is not None and form.mask.dtype == ir.DataType.BOOL
    return [
        ("bool mask", is_bool),
        ("mask", form.mask is not None and not is_bool),
        ("is_causal", form.is_causal),
        ("window", max(form.window) >= 0),
        ("nonpad_kv_seqlen", form.nonpad is not None),
    ]


def _sum(form: AttentionForm, at: Inserter) -> ir.Value:
    """Everything bool is joined first, so that a key hidden twice is not pushed to -inf."""
    keeps: list[ir.Value] = []
    if form.is_causal or form.nonpad is not None or max(form.window) >= 0:
        keys = form.length(at, form.k)
        keeps = position_masks(form, at, keys, _offset(form, at))
        if form.nonpad is not None:
            keeps.append(padding_mask(form, at, keys, form.nonpad))
    is_bool = form.mask is not None and form.mask.dtype == ir.DataType.BOOL
    if form.mask is not None and is_bool:
        keeps.append(form.mask)
    if not keeps:
        assert form.mask is not None, "there is something to merge"
        return form.mask
    keep = keeps[0]
    for other in keeps[1:]:
        keep = at.op("And", [keep, other], dtype=ir.DataType.BOOL)
    hidden = additive(form, at, keep)
    if form.mask is None or is_bool:
        return hidden
    return at.op("Add", [form.mask, hidden], dtype=form.dtype)


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
    for name in POSITIONAL:
        node.attributes.pop(name, None)
