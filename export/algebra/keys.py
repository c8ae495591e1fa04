"""One number per meaning of a value (global value numbering), with spellings that change nothing made equal.

Transparent: float casts, Identity, Dropout, views to the same sizes, full slices, transposes that cancel.
Unified: Unsqueeze, Squeeze, Flatten and Reshape; Split, Slice and Gather of one element; commuted operands;
Mul(x, x) and Pow(x, 2); Div(1, x) and Reciprocal(x); constants by their elements, whatever holds them.
"""

import hashlib
import math
from collections.abc import Hashable
from typing import Protocol

import numpy as np
import onnx_ir as ir

from .content import Content
from .symbols import Dims, Sym

COMMUTATIVE = {"Add", "Sum", "Mul", "Max", "Min", "And", "Or", "Equal"}
LARGE = 2**16  # elements
VIEWS = {"Reshape", "Unsqueeze", "Squeeze", "Flatten"}


class Known(Protocol):
    """What numbering asks of a graph's facts (see facts.Facts)."""

    def dims(self, value: ir.Value | None) -> Dims | None: ...
    def content(self, value: ir.Value | None) -> Content | None: ...
    def scalar(self, value: ir.Value | None) -> float | None: ...
    def array(self, value: ir.Value) -> np.ndarray | None: ...
    def constant(self, value: ir.Value | None) -> bool: ...
    def axes(self, node: ir.Node) -> list[int] | None: ...
    def peel(self, value: ir.Value) -> ir.Value: ...


class Numbering:
    """Keys of one graph's values, computed when asked."""

    def __init__(self, facts: Known) -> None:
        self.facts = facts
        self._keys: dict[ir.Value, int] = {}
        self._known: dict[Hashable, int] = {}
        self._origin: dict[int, Hashable] = {}

    def key(self, value: ir.Value) -> int:
        """The key of `value`; iterative, so that a long chain does not recurse."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._keys:
                stack.pop()
                continue
            producer = top.producer()
            missing = (
                [v for v in producer.inputs if v is not None and v not in self._keys]
                if producer
                else []
            )
            if missing:
                stack.extend(missing)
                continue
            self._keys[top] = self._number(top, producer)
            stack.pop()
        return self._keys[value]

    def _intern(self, form: Hashable) -> int:
        if form not in self._known:
            self._known[form] = len(self._known)
            self._origin[self._known[form]] = form
        return self._known[form]

    def _number(self, value: ir.Value, producer: ir.Node | None) -> int:
        facts = self.facts
        scalar = facts.scalar(value)
        if scalar is not None:
            dims = facts.dims(value)
            return self._intern(("scalar", scalar, len(dims) if dims else 0))
        if producer is None or producer.op_type == "Constant":
            return self._intern(self._leaf(value))
        if (producer.domain == "" and value is producer.outputs[0]) or producer.op_type == "Split":
            form = self._form(producer, value)
            if form is not None:
                return form if isinstance(form, int) else self._intern(form)
        inputs = tuple(-1 if v is None else self._keys[v] for v in producer.inputs)
        if producer.op_type in COMMUTATIVE and producer.domain == "":
            inputs = tuple(sorted(inputs))
        return self._intern(
            (producer.domain, producer.op_type, value.index(), _attributes(producer), inputs)
        )

    def _leaf(self, value: ir.Value) -> Hashable:
        tensor = value.const_value
        large = tensor is not None and tensor.size > LARGE  # not even read: it is itself
        array = self.facts.array(value) if not large and self.facts.constant(value) else None
        if array is None or array.size > LARGE:
            return ("leaf", id(value))
        return (
            "data",
            array.shape,
            array.dtype.kind,
            hashlib.sha256(array.astype("f8").tobytes()).hexdigest(),
        )

    def _form(self, node: ir.Node, value: ir.Value) -> Hashable | None:
        """The unified form of a node, a key where it equals its input, None for the general case."""
        facts, op = self.facts, node.op_type
        first = node.inputs[0] if node.inputs else None
        if first is None:
            return None
        below = self._keys[first]
        dims, before = facts.dims(value), facts.dims(first)
        if op in ("Cast", "CastLike", "Identity", "Dropout"):
            return below if facts.peel(value) is not value else None
        if op in VIEWS:
            return self._view(below, before, dims)
        if op == "Expand" and dims is not None:
            return below if dims == before else ("expand", below, dims)
        if op == "Transpose" and before is not None:
            return self._transpose(
                below, tuple(node.attributes.get_ints("perm", range(len(before))[::-1]))
            )
        if op in ("Slice", "Split", "Gather"):
            return self._slice(node, value, below, before, dims)
        if op == "Pow" and facts.scalar(node.inputs[1]) == 2.0:
            return ("", "Mul", 0, (), (below, below))
        if op == "Div" and facts.scalar(first) == 1.0 and node.inputs[1] is not None:
            return ("", "Reciprocal", 0, (), (self._keys[node.inputs[1]],))
        if op == "Concat" and len(node.inputs) == 1:
            return below
        if op.startswith("Reduce"):
            axes = facts.axes(node)
            if axes is not None:
                return (
                    "view",
                    self._intern(("reduce", op, tuple(sorted(axes)), below)),
                    None,
                    dims,
                )
        if op in ("Mul", "Div") and dims is not None:
            return self._mean(node, dims)
        return None

    def _mean(self, node: ir.Node, dims: Dims) -> Hashable | None:
        """A sum times one over the count is a mean."""
        for at, other in ((0, 1), (1, 0)):
            summed, number = node.inputs[at], self.facts.scalar(node.inputs[other])
            if summed is None or number is None or not number or (node.op_type == "Div" and at):
                continue
            origin = self._origin[self._keys[summed]]
            reduction = (
                self._origin[origin[1]]
                if isinstance(origin, tuple) and origin[0] == "view"
                else None
            )
            if not isinstance(reduction, tuple) or reduction[:2] != ("reduce", "ReduceSum"):
                return None
            count = self._count(summed, reduction[2])
            factor = number if node.op_type == "Mul" else 1 / number
            if count and abs(count * factor - 1) < 1e-6:
                return ("view", self._intern(("reduce", "ReduceMean", *reduction[2:])), None, dims)
        return None

    def _count(self, value: ir.Value, axes: tuple[int, ...]) -> int | None:
        node = value.producer()
        while (
            node is not None
            and not node.op_type.startswith("Reduce")
            and node.inputs[0] is not None
        ):
            node = node.inputs[0].producer()
        dims = self.facts.dims(node.inputs[0]) if node is not None else None
        sizes = [dims[a] for a in axes] if dims is not None else [None]
        return math.prod(sizes) if all(isinstance(d, int) for d in sizes) else None  # type: ignore[arg-type]

    def _view(self, below: int, before: Dims | None, dims: Dims | None) -> Hashable | None:
        if dims is None:
            return None
        origin = self._origin[below]
        if isinstance(origin, tuple) and origin[0] == "view":
            _, below, before, _ = origin
        return below if dims == before else ("view", below, before, dims)

    def _transpose(self, below: int, perm: tuple[int, ...]) -> Hashable:
        origin = self._origin[below]
        if isinstance(origin, tuple) and origin[0] == "transpose" and len(origin[2]) == len(perm):
            below, perm = origin[1], tuple(origin[2][p] for p in perm)
        return below if perm == tuple(range(len(perm))) else ("transpose", below, perm)

    def _slice(
        self, node: ir.Node, value: ir.Value, below: int, before: Dims | None, dims: Dims | None
    ) -> Hashable | None:
        facts = self.facts
        if before is None or dims is None:
            return None
        if node.op_type == "Gather":
            index, axis = (
                facts.scalar(node.inputs[1]),
                node.attributes.get_int("axis", 0) % len(before),
            )
            if index is None or len(dims) != len(before) - 1:
                return None
            size = before[axis]
            at = int(index) + (size if index < 0 and isinstance(size, int) else 0)
            cut: Hashable = ("slice", below, axis, at, 1, 1)
            kept = (*before[:axis], 1, *before[axis + 1 :])
            return self._view(self._intern(cut) if size != 1 else below, kept, dims)
        if node.op_type == "Split":
            axis = node.attributes.get_int("axis", 0) % len(before)
            lengths = [facts.dims(o) for o in node.outputs]
            sizes = [d[axis] for d in lengths if d is not None]
            if len(sizes) < len(lengths) or any(isinstance(s, Sym) for s in sizes):
                return None
            start = sum(int(s) for s in sizes[: value.index()] if isinstance(s, int))
            return ("slice", below, axis, start, 1, sizes[value.index() or 0])
        bounds = slice_bounds(facts, node)
        if bounds is None:
            return None
        for axis, start, step in bounds:
            if start == 0 and step == 1 and dims[axis] == before[axis]:
                continue
            below = self._intern(("slice", below, axis, start, step, dims[axis]))
        return below


def slice_bounds(facts: Known, node: ir.Node) -> list[tuple[int, int, int]] | None:
    """(axis, start, step) of a Slice with known starts, counted from the front; None otherwise."""
    if len(node.inputs) < 3:  # before opset 10
        return None
    dims = facts.dims(node.inputs[0])
    starts = facts.content(node.inputs[1])
    if dims is None or starts is None:
        return None
    axes = facts.axes(node)
    steps = facts.content(node.inputs[4]) if len(node.inputs) > 4 else None
    result = []
    for i, start in enumerate(starts.reshape(-1).tolist()):
        axis = axes[i] if axes is not None else i
        step = steps.reshape(-1)[i] if steps is not None else 1
        size = dims[axis]
        if not isinstance(start, int) or not isinstance(step, int):
            return None
        if start < 0:
            if not isinstance(size, int):
                return None
            start = max(start + size, 0)
        result.append((axis, start, step))
    return result


def _attributes(node: ir.Node) -> Hashable:
    return tuple(sorted((k, str(a.value)) for k, a in node.attributes.items()))
