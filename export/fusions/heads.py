"""Where an attention's queries, keys and values come from: below scales, transposes and repeated heads.

K^T [B, H, D, S] <- Transpose, or Reshape-Transpose-Reshape, of K [B, H, S, D]
K   [B, Hkv * G, S, D] <- Reshape(Expand(Unsqueeze(k, 2))): head h reads k's head h // G
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.symbols import Dims, product

VIEWS = {"Reshape", "Unsqueeze", "Squeeze", "Identity"}


@dataclass(frozen=True, slots=True)
class Operand:
    """`value`, transposed by `perm`, times `scale`, with every head read `repeats` times."""

    value: ir.Value
    dims: Dims  # after perm, before the repeats
    perm: tuple[int, ...]
    scale: float = 1.0
    repeats: int = 1

    @property
    def straight(self) -> bool:
        return self.perm == tuple(range(len(self.perm)))


def operand(facts: Facts, value: ir.Value, perm: tuple[int, ...] | None = None) -> Operand | None:
    """`value` read through `perm` (the identity where None), taken back to what the heads were made of."""
    dims = facts.dims(value)
    if dims is None:
        return None
    found = straight_operand(facts, value, perm or tuple(range(len(dims))))
    for _ in range(12):
        below = _scaled(facts, found) or _transposed(facts, found) or _repeated(facts, found)
        if below is None:
            return found
        found = below
    return found


def straight_operand(facts: Facts, value: ir.Value, perm: tuple[int, ...]) -> Operand:
    """`value` itself read through `perm`; its sizes must be known."""
    dims = facts.dims(value)
    assert dims is not None
    return Operand(value, tuple(dims[p] for p in perm), perm)


def _scaled(facts: Facts, found: Operand) -> Operand | None:
    node = found.value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Identity" and node.inputs[0] is not None:
        return replace(found, value=node.inputs[0])
    if node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    first, second = node.inputs[0], node.inputs[1]
    a, b = facts.scalar(first), facts.scalar(second)
    if node.op_type == "Mul" and (a is None) != (b is None):
        data, factor = (second, a) if b is None else (first, b)
    elif node.op_type == "Div" and a is None and b:
        data, factor = first, 1 / b
    else:
        return None
    if data is None or factor is None or facts.dims(data) != facts.dims(found.value):
        return None
    return replace(found, value=data, scale=found.scale * factor)


def _transposed(facts: Facts, found: Operand) -> Operand | None:
    node = found.value.producer()
    if node is None or node.domain or node.inputs[0] is None:
        return None
    below = node.inputs[0]
    dims, before = facts.dims(found.value), facts.dims(below)
    if dims is None or before is None:
        return None
    if node.op_type == "Transpose":
        own = node.attributes.get_ints("perm", list(range(len(before)))[::-1])
        return replace(found, value=below, perm=tuple(own[p] for p in found.perm))
    if node.op_type != "Reshape" or len(dims) < 3:
        return None
    middle = below.producer()  # [B, H, S, D] -> [B * H, S, D] -> [B * H, D, S] -> [B, H, D, S]
    if middle is None or middle.op_type != "Transpose" or middle.domain or len(before) != 3:
        return None
    if tuple(middle.attributes.get_ints("perm", [])) != (0, 2, 1) or middle.inputs[0] is None:
        return None
    first = middle.inputs[0].producer()
    if first is None or first.op_type != "Reshape" or first.inputs[0] is None:
        return None
    source = facts.dims(first.inputs[0])
    if (
        source is None
        or source != (*dims[:-2], dims[-1], dims[-2])
        or before[0] != product(dims[:-2])
    ):
        return None
    if before[1:] != dims[-2:]:
        return None
    rank = len(dims)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    return replace(found, value=first.inputs[0], perm=tuple(swap[p] for p in found.perm))


def _repeated(facts: Facts, found: Operand) -> Operand | None:
    """Below repeated heads, where the head axis is axis 1 of the operand."""
    if len(found.perm) != 4 or found.repeats != 1:
        return None
    axis = found.perm[1]
    node = found.value.producer()
    if node is None or node.domain or node.inputs[0] is None:
        return None
    if node.op_type == "Gather":
        return _gathered(facts, found, node, axis)
    if node.op_type != "Reshape":
        return None
    wide = facts.dims(node.inputs[0])
    dims = facts.dims(found.value)
    if wide is None or dims is None or len(wide) != 5:
        return None
    if (*wide[:axis], *wide[axis + 2 :]) != (*dims[:axis], *dims[axis + 1 :]):
        return None
    spread = node.inputs[0].producer()
    if spread is None or spread.domain or spread.inputs[0] is None:
        return None
    narrow = spread.inputs[0]
    thin = facts.dims(narrow)
    if spread.op_type == "Concat":
        same = all(facts.key(v) == facts.key(narrow) for v in spread.inputs if v is not None)
        if not same or spread.attributes.get_int("axis", 0) % 5 != axis + 1:
            return None
    elif spread.op_type not in ("Expand", "Tile"):
        return None
    if (
        thin is None
        or thin != (*wide[: axis + 1], 1, *wide[axis + 2 :])
        or not isinstance(groups := wide[axis + 1], int)
    ):
        return None
    source = narrow
    while (
        (view := source.producer()) is not None
        and view.op_type in VIEWS
        and view.inputs[0] is not None
    ):
        source = view.inputs[0]
        if facts.dims(source) == (*thin[: axis + 1], *thin[axis + 2 :]):
            break
    inner = facts.dims(source)
    if inner != (*thin[: axis + 1], *thin[axis + 2 :]):
        return None
    return replace(found, value=source, dims=tuple(inner[p] for p in found.perm), repeats=groups)


def _gathered(facts: Facts, found: Operand, node: ir.Node, axis: int) -> Operand | None:
    below, indices = node.inputs[0], node.inputs[1]
    dims = facts.dims(below)
    array = facts.array(indices) if indices is not None else None
    if below is None or dims is None or array is None or array.ndim != 1 or len(dims) != 4:
        return None
    heads = dims[axis]
    if (
        node.attributes.get_int("axis", 0) % 4 != axis
        or not isinstance(heads, int)
        or not heads
        or len(array) % heads
    ):
        return None
    groups = len(array) // heads
    if groups < 2 or not np.array_equal(array, np.repeat(np.arange(heads), groups)):
        return None
    return replace(found, value=below, dims=tuple(dims[p] for p in found.perm), repeats=groups)
