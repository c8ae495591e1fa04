"""Masks that survive 16 bits: no finite number becomes an infinity, no row of infinities becomes NaN.

(1 - keep) * finfo(float32).min -> Cast          the Cast gets a Max(., lowest of the type) before it
a stored number below the type's lowest          becomes that lowest where a 16-bit operator reads it
-inf in front of a Softmax without an IsNaN      becomes the type's lowest; a row hidden whole stays finite
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .options import PrecisionOptions
from .report import Change
from .structure import MOVES, all_nodes, is_constant, is_float

CARRIERS = (MOVES - {"Gather"}) | {"Add", "Sub", "Mul", "Max", "Min", "Clip", "Neg", "Cast", "Sum"}
_MAX_SIZE = 1 << 24  # elements: a larger constant is a weight


def hidden_values(model: ir.Model, options: PrecisionOptions) -> set[ir.Value]:
    """Values with finite numbers that only hide scores: made from a constant near or beyond the type's lowest, or fed.

    A mask is what reaches a Softmax or an Attention's mask through additions and moves alone.
    """
    hidden: set[ir.Value] = set()
    for node in all_nodes(model.graph):
        if node.op_type == "Attention" and len(node.inputs) > 3:
            mask = node.inputs[3]
            if mask is not None and is_float(mask) and mask.is_graph_input():
                hidden.add(mask)
        hides = any(v in hidden or _hides(v, options) for v in node.inputs if v is not None)
        if node.op_type == "ConstantOfShape" and "value" in node.attributes:
            filled = np.asarray(node.attributes["value"].as_tensor().numpy())
            hides = bool(filled.dtype.kind == "f" and filled.min() <= -options.limit / 2)
        if hides and node.op_type in CARRIERS:
            results = [v for v in node.outputs if is_float(v)]
            hidden.update(v for v in results if _reaches(v, _reads_mask, set()))
    return hidden


def _hides(value: ir.Value, options: PrecisionOptions) -> bool:
    if not small_constant(value):
        return False
    assert value.const_value is not None
    numbers = np.asarray(value.const_value.numpy())
    finite = numbers[np.isfinite(numbers)]
    return bool(finite.size and finite.min() <= -options.limit / 2)


def small_constant(value: ir.Value) -> bool:
    """A constant that something but a matrix product reads."""
    if not is_constant(value) or not is_float(value) or value.const_value is None:
        return False
    carried = any(use.node.op_type in CARRIERS for use in value.uses())
    return carried and value.const_value.size <= _MAX_SIZE


def _reads_mask(node: ir.Node, index: int) -> bool:
    return node.op_type == "Softmax" or (node.op_type == "Attention" and index == 3)


def _bare_softmax(node: ir.Node, _index: int) -> bool:
    readers = [u.node.op_type for v in node.outputs for u in v.uses()]
    return node.op_type == "Softmax" and "IsNaN" not in readers


def _reaches(value: ir.Value, wanted: Callable[[ir.Node, int], bool], seen: set[ir.Value]) -> bool:
    """Whether additions and moves carry the value to an input that `wanted` accepts."""
    for use in value.uses():
        if wanted(use.node, use.idx):
            return True
        if use.node.op_type not in CARRIERS:
            continue
        for result in use.node.outputs:
            if result not in seen:
                seen.add(result)
                if _reaches(result, wanted, seen):
                    return True
    return False


def bound_infinities(model: ir.Model, options: PrecisionOptions) -> list[Change]:
    """Replace -inf by the type's lowest number where it reaches a Softmax whose rows nothing guards."""
    changes = []
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if _endless(value) and _reaches(value, _bare_softmax, set()):
                assert value.const_value is not None
                numbers = np.array(value.const_value.numpy())
                numbers[np.isneginf(numbers)] = -options.limit
                value.const_value = ir.tensor(numbers, name=value.name)
                changes.append(Change(str(value.name), float("-inf"), -options.limit))
    return changes


def _endless(value: ir.Value) -> bool:
    return small_constant(value) and bool(np.isneginf(value.const_value.numpy()).any())  # type: ignore[union-attr]


def clamped(numbers: np.ndarray, limit: float) -> np.ndarray:
    """Finite numbers moved into [-limit, limit]; infinities stay."""
    return np.where(np.isfinite(numbers), np.clip(numbers, -limit, limit), numbers)
