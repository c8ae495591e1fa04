"""Attention with past inputs or present outputs -> Concat, and Attention with one output.

    y, present_key, present_value = Attention(q, k, v, mask, past_key, past_value)
    -> present_key = Concat(past_key, k); present_value = Concat(past_value, v); y = Attention(q, present_key, ..)

TensorRT takes neither past inputs nor a second output. With past inputs is_causal is aligned to the end (query i
sees key j when j <= i + past length), with one key sequence to the start, so the offset moves into a mask; so does a window.
"""

import onnx_ir as ir

from ...core.errors import BuildError
from .attention import POSITIONAL, AttentionForm, additive, attentions, position_masks
from .edit import Inserter, replace_output


def spell_out_cache(model: ir.Model) -> list[str]:
    """Rewrite every Attention with a cache in `model`, in place; BuildError where its scores are read."""
    changed = []
    for form in attentions(model):
        outputs = form.node.outputs
        read = [o for o in outputs[1:] if o.uses() or o.is_graph_output()]
        presents = [o for o in read if o in outputs[1:3]]
        if read != presents:
            raise BuildError(
                f"legalise node {form.node.name!r} (Attention)",
                found="its qk_matmul_output is read, which TensorRT has no equal for",
                fix="Export the graph without that output",
            )
        if form.past_key is None and not presents:
            if len(outputs) > 1:
                _replace(form, Inserter(form.node), form.q, form.k, form.v, form.mask, True)
                changed.append(f"{form.node.name}: dropped outputs that nothing reads")
            continue
        at = Inserter(form.node)
        q, k, v = (form.heads_apart(at, value) for value in (form.q, form.k, form.v))
        mask, positional = form.mask, True
        if form.past_key is not None and form.past_value is not None:
            past = form.length(at, form.past_key)
            keys = at.op("Add", [past, form.length(at, form.k)], dtype=ir.DataType.INT64)
            k = at.op("Concat", [form.past_key, k], dtype=form.dtype, shape=_longer(k), axis=2)
            v = at.op("Concat", [form.past_value, v], dtype=form.dtype, shape=_longer(v), axis=2)
            mask = _hide(form, at, position_masks(form, at, keys, past))
            positional = False
        for present, value in zip(outputs[1:3], (k, v), strict=False):
            if present in presents:
                given = value in (form.k, form.v)  # it has a name of its own that must stay
                replace_output(
                    present, at.op("Identity", [value], dtype=form.dtype) if given else value
                )
        _replace(form, at, q, k, v, mask, positional)
        changed.append(f"{form.node.name}: cache spelled out as Concat")
    return changed


def _longer(value: ir.Value) -> ir.Shape | None:
    """The shape [B, heads, any length, D] of `value` behind a cache."""
    if value.shape is None or len(value.shape) != 4:
        return None
    batch, heads, _, size = value.shape
    return ir.Shape([batch, heads, None, size])


def _hide(form: AttentionForm, at: Inserter, keeps: list[ir.Value]) -> ir.Value | None:
    """The node's own mask, if any, with everything hidden that one of `keeps` hides."""
    mask = form.mask
    is_bool = mask is None or mask.dtype == ir.DataType.BOOL
    if mask is not None and is_bool:
        keeps = [mask, *keeps]
    if not keeps:
        return mask
    keep = keeps[0]
    for other in keeps[1:]:
        keep = at.op("And", [keep, other], dtype=ir.DataType.BOOL)
    return keep if is_bool else at.op("Add", [mask, additive(form, at, keep)], dtype=form.dtype)


def _replace(
    form: AttentionForm,
    at: Inserter,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None,
    positional: bool,
) -> None:
    """Put a one-output Attention in the node's place, under its name; positional: keep what hides keys by position."""
    node = form.node
    turned = q is not form.q
    attributes = dict(node.attributes)
    if turned:
        del attributes["q_num_heads"], attributes["kv_num_heads"]
    if not positional:
        for name in POSITIONAL:
            attributes.pop(name, None)
    inputs = [q, k, v, mask, None, None, form.nonpad]
    while inputs[-1] is None:
        inputs.pop()
    made = ir.node("Attention", inputs, name=node.name)
    made.attributes.update(attributes)
    (y,) = made.outputs
    y.name, y.type = f"{node.name}/y", ir.TensorType(form.dtype)
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, [made])
    replace_output(node.outputs[0], form.heads_together(at, y) if turned else y)
    node.graph.remove(node, safe=True)
