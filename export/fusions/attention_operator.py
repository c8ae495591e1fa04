"""The standard Attention (opset 23; 25 with a mask) for a proven attention, where it means the same.

A row that no key may serve: Attention gives zeros when the bias of the whole row is -inf, the softmax of finite biases
otherwise. So a mask of -inf needs the graph's own guard against NaN, or the proof that every row keeps a key.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.symbols import Dims
from .heads import Operand
from .masks import causal, lowest
from .match import Standard, Tape
from .scores import Scores

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(slots=True)
class Found:
    """A proven attention."""

    softmax: ir.Node
    scores: Scores
    weights: ir.Value  # what multiplies the values
    product: ir.Node  # of the weights and the values
    root: ir.Value
    query: Operand
    key: Operand
    value: Operand
    output_perm: tuple[int, ...] | None  # from [B, H, S, E] to the root, None for none
    guarded: bool  # rows of NaN become zero


def standard_attention(facts: Facts, found: Found, notes: list[str]) -> Standard | None:
    """The standard operator, None (with a note of the reason) where it would compute something else."""
    reason = _obstacle(facts, found)
    if reason:
        notes.append(f"no standard Attention: {reason}")
        return None
    scores = found.scores
    dtype = facts.dtype(found.query.value)
    assert dtype is not None
    pure_causal = _only_causal(facts, found)
    scale = scores.scale * found.query.scale * found.key.scale
    softmax_type = facts.dtype(found.softmax.outputs[0])
    precision = softmax_type.value if softmax_type is not None and softmax_type != dtype else None
    if dtype != ir.DataType.FLOAT:
        notes.append(
            "inside the operator the products round where it rounds, not where the graph did"
        )

    def build(tape: Tape) -> ir.Value:
        q, k, v = (_read(tape, o, dtype) for o in (found.query, found.key, found.value))
        mask = None if pure_causal else _mask(tape, found, dtype)
        dims: Dims = (*found.query.dims[:3], found.value.dims[3])
        y = tape.op(
            "Attention",
            [q, k, v] if mask is None else [q, k, v, mask],
            dtype,
            dims,
            scale=scale,
            softcap=scores.softcap or None,
            is_causal=1 if pure_causal else None,
            softmax_precision=precision,
        )
        if found.output_perm is None:
            return y
        return tape.op(
            "Transpose",
            [y],
            dtype,
            tuple(dims[p] for p in found.output_perm),
            perm=found.output_perm,
        )

    masked = not pure_causal and bool(scores.biases or scores.masks)
    return Standard("Attention", 25 if masked else 23, build)


def _obstacle(facts: Facts, found: Found) -> str:
    scores = found.scores
    if scores.oddities:
        return scores.oddities[0]
    operands = (found.query, found.key, found.value)
    if any(len(o.dims) != 4 for o in operands):
        return "it has not four axes"
    kinds = {facts.dtype(o.value) for o in operands}
    if len(kinds) != 1 or not kinds <= set(TYPES) or facts.dtype(found.root) not in kinds:
        return "the types of queries, keys and values differ"
    q, k, v = (o.dims for o in operands)
    if not q[0] == k[0] == v[0] or k[1] != v[1] or k[2] != v[2] or q[3] != k[3]:
        return "the sizes of queries, keys and values do not fit"
    heads, kv_heads = q[1], k[1]
    if heads != kv_heads:
        if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
            return "the heads of the queries are no multiple of the keys'"
        if kv_heads > 1 and not found.key.repeats == found.value.repeats == heads // kv_heads:
            return "the heads are repeated another way"
    if scores.scale * found.query.scale * found.key.scale <= 0:
        return "the scale is not positive"
    if _only_causal(facts, found):
        return ""
    for mask in scores.masks:
        if mask.fill != float("-inf"):
            return "a masked row without keys would get other numbers"
        if not found.guarded:
            return "a masked row without keys is NaN in the graph, zero in the operator"
        if facts.dims(mask.mask) is None:
            return "the sizes of the mask are not known"
    if len(scores.masks) > 1 or (scores.masks and scores.biases):
        return "several masks"
    for bias, _ in scores.biases:
        dims = facts.dims(bias)
        if dims is None or not 2 <= len(dims) <= 4 or facts.dtype(bias) not in TYPES:
            return "the bias has no form of a mask"
        if lowest(facts, bias) == float("-inf") and not found.guarded and not causal(facts, bias):
            return "a masked row without keys is NaN in the graph, zero in the operator"
    return ""


def _only_causal(facts: Facts, found: Found) -> bool:
    """Whether all that is masked is the future, with keys and queries of one length."""
    scores = found.scores
    if found.query.dims[-2] != found.key.dims[-2]:
        return False
    if len(scores.biases) == 1 and not scores.masks:
        return scores.biases[0][1] > 0 and causal(facts, scores.biases[0][0])
    if len(scores.masks) == 1 and not scores.biases:
        mask = scores.masks[0]
        return (
            mask.fill is not None
            and mask.fill <= -1e4
            and causal(facts, mask.mask, keep_when=mask.keep_when)
        )
    return False


def _read(tape: Tape, operand: Operand, dtype: ir.DataType) -> ir.Value:
    """The operand as [B, H, S, D]."""
    if operand.straight:
        return operand.value
    key = ("transposed", operand.value, operand.perm)
    if key not in tape.shared:
        existing = _same_transpose(tape, operand)
        tape.shared[key] = existing or tape.op(
            "Transpose", [operand.value], dtype, operand.dims, perm=operand.perm
        )
    return tape.shared[key]


def _same_transpose(tape: Tape, operand: Operand) -> ir.Value | None:
    for node in tape.facts.users(tape.done.now(operand.value)):
        if (
            node.op_type == "Transpose"
            and tuple(node.attributes.get_ints("perm", [])) == operand.perm
        ):
            return node.outputs[0]
    return None


def _mask(tape: Tape, found: Found, dtype: ir.DataType) -> ir.Value | None:
    scores, facts = found.scores, tape.facts
    if scores.masks:
        mask = scores.masks[0]
        if mask.keep_when:
            return mask.mask
        return tape.op("Not", [mask.mask], ir.DataType.BOOL, facts.dims(mask.mask))
    total: ir.Value | None = None
    for bias, factor in scores.biases:
        value = bias
        if facts.dtype(value) != dtype:
            value = tape.op("Cast", [value], dtype, facts.dims(bias), to=dtype)
        if factor != 1.0:
            value = tape.op(
                "Mul", [value, tape.constant(np.array(factor), dtype)], dtype, facts.dims(bias)
            )
        total = value if total is None else tape.op("Add", [total, value], dtype, None)
    return total
