"""Attention that no fused kernel of TensorRT computes -> MatMul, Softmax and what lies between.

    scores = (q * sqrt(scale)) @ (k * sqrt(scale))^T      in the type of q
    scores = softcap * tanh(scores / softcap) + mask      in fp32
    y      = softmax(scores) @ v                          in the type of q

for softcap, for values whose head size differs from the queries', and inside If, Loop and Scan, where TensorRT-RTX 1.7.1
loses the scale that its importer puts in front of the operator. Shapes: see attention.py.
"""

import math
from collections import Counter

import onnx_ir as ir

from .attention import (
    BOOL,
    HIDDEN,
    INT64,
    AttentionForm,
    additive,
    attentions,
    position_masks,
)
from .edit import Inserter, replace_output

FP32 = ir.DataType.FLOAT


def spell_out_attention(model: ir.Model) -> list[str]:
    """Decompose every Attention of `model` that TensorRT has no operator for, in place."""
    changed = []
    names = Counter(node.name for node in model.graph.all_nodes())
    for form in attentions(model):
        inside = form.node.graph is not model.graph
        reason = "inside a subgraph" if inside else _reason(form)
        if not reason:
            continue
        if inside and names[form.node.name] > 1:  # new values must not hide those of an outer graph
            form.node.name = f"{form.node.name}/inside"
        _decompose(form)
        changed.append(f"{form.node.name}: {reason}, spelled out as MatMul and Softmax")
    return changed


def _reason(form: AttentionForm) -> str:
    if form.node.attributes.get_float("softcap", 0.0) > 0:
        return "softcap"
    sizes = [value.shape[-1] if value.shape else None for value in (form.q, form.v)]
    if all(isinstance(size, int) for size in sizes) and form.head_size(form.q) != form.head_size(
        form.v
    ):
        return "values with another head size"
    return ""


def _decompose(form: AttentionForm) -> None:
    node, at, dtype = form.node, Inserter(form.node), form.dtype
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(form.head_size(form.q))
    softcap = node.attributes.get_float("softcap", 0.0)
    root = math.sqrt(abs(scale))
    q_root, k_root = at.constant(math.copysign(root, scale), dtype), at.constant(root, dtype)
    q_BNSD = at.op("Mul", [form.heads_apart(at, form.q), q_root], dtype=dtype)
    k_BKTD = at.op("Mul", [form.heads_apart(at, form.k), k_root], dtype=dtype)
    k_BNTD = _repeat_heads(form, at, k_BKTD, form.head_size(form.k))
    v_BNTD = _repeat_heads(form, at, form.heads_apart(at, form.v), form.head_size(form.v))
    k_BNDT = at.op("Transpose", [k_BNTD], dtype=dtype, perm=[0, 1, 3, 2])
    scores = at.op("MatMul", [q_BNSD, k_BNDT], dtype=dtype)
    scores = _cast(at, scores, dtype, FP32)
    if softcap > 0:
        cap = at.constant(softcap, FP32)
        scores = at.op("Div", [scores, cap], dtype=FP32)
        scores = at.op("Mul", [at.op("Tanh", [scores], dtype=FP32), cap], dtype=FP32)
    mask = form.mask
    for keep in position_masks(form, at, form.length(at, form.k), None):  # is_causal alone
        mask = additive(form, at, keep)
    if mask is not None:
        assert mask.dtype != BOOL, "merge_masks ran before"
        scores = at.op("Add", [scores, _cast(at, mask, dtype, FP32)], dtype=FP32)
        scores = at.op("Max", [scores, at.constant(HIDDEN[FP32], FP32)], dtype=FP32)
    weights = at.op("Softmax", [scores], dtype=FP32, axis=-1)
    y_BNSD = at.op("MatMul", [_cast(at, weights, FP32, dtype), v_BNTD], dtype=dtype)
    replace_output(node.outputs[0], form.heads_together(at, y_BNSD))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)


def _repeat_heads(form: AttentionForm, at: Inserter, x_BKTD: ir.Value, size: int) -> ir.Value:
    """[B, K, T, D] -> [B, N, T, D]: each key head serves N / K query heads in a row."""
    heads, key_heads = form.num_heads
    if heads == key_heads:
        return x_BKTD
    x = at.op("Unsqueeze", [x_BKTD, at.constant([2], INT64)], dtype=form.dtype)
    times = at.constant([1, 1, heads // key_heads, 1, 1], INT64)
    x = at.op("Expand", [x, times], dtype=form.dtype)
    return at.op("Reshape", [x, at.constant([0, heads, -1, size], INT64)], dtype=form.dtype)


def _cast(at: Inserter, value: ir.Value, source: ir.DataType, to: ir.DataType) -> ir.Value:
    return value if source == to else at.op("Cast", [value], dtype=to, to=int(to))
