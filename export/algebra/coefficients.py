"""The coefficients of a rotation by their meaning: which lanes of cosines and sines are equal, and of which angle.

cos(concat(f, f)), concat(cos(f), cos(f)) and a table whose halves agree have equal halves
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .facts import Facts
from .lane_shapes import Lanes, Shape, lane_shape
from .moves import move

VIEWS = {"Unsqueeze", "Squeeze", "Reshape", "Expand"}
ROW_MOVES = {"Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Gather", "Transpose", "Tile"}


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One lane of a coefficient: what it means, and where to read it."""

    meaning: int
    sign: int
    value: ir.Value
    at: int
    shape: Shape  # of the lanes that `at` counts through
    aligned: bool = True  # the table spreads over the tensor from the last axis, as factors do


class CoefficientReader:
    """Coefficients of one graph, read when asked."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._coefficients: dict[tuple[ir.Value, Shape], Lanes] = {}
        self._meanings: dict[Hashable, int] = {}
        self._angles: dict[ir.Value, bool] = {}
        self._plain: dict[int, int] = {}  # meaning -> the same below views
        self.angle_of: dict[int, int] = {}  # meaning of a cosine or sine -> that of its angle

    def angle(self, value: ir.Value, data: ir.Value) -> bool:
        """Whether `value` is a coefficient of `data`: made of cosines, of a table, or spread over batch or heads."""
        dims, wide = self.facts.dims(value), self.facts.dims(data)
        if (
            dims is None
            or wide is None
            or (all(d == 1 for d in dims[:-1]) and not self._trigonometric(value))
        ):
            return False
        if self._trigonometric(value):
            return True
        if self._trigonometric(data) or self.facts.constant(data):
            return False
        padded = (1,) * (len(wide) - len(dims)) + dims
        return len(dims) <= len(wide) and any(
            p == 1 != w for p, w in zip(padded[:-1], wide[:-1], strict=True)
        )

    def _trigonometric(self, value: ir.Value) -> bool:
        if value not in self._angles:
            self._angles[value] = False
            node = value.producer()
            if node is None or self.facts.constant(value):
                dims = self.facts.dims(value)
                self._angles[value] = (
                    self.facts.constant(value)
                    and dims is not None
                    and sum(d != 1 for d in dims) > 1
                )
            elif node.domain == "" and node.op_type in ("Cos", "Sin"):
                self._angles[value] = True
            elif node.domain == "" and node.op_type in (
                *ROW_MOVES,
                "Cast",
                "Neg",
                "Concat",
                "Split",
                "Identity",
            ):
                self._angles[value] = (
                    self._trigonometric(node.inputs[0]) if node.inputs[0] is not None else False
                )
            elif node.domain == "" and node.op_type in ("Mul", "Div"):
                scaled = [v for v in node.inputs if v is not None and self.facts.scalar(v) is None]
                self._angles[value] = len(scaled) == 1 and self._trigonometric(scaled[0])
        return self._angles[value]

    def coefficient(self, value: ir.Value, shape: Shape) -> Lanes:
        """The lanes of a coefficient, each with its meaning and place."""
        meanings = self._meaning(value, shape).reshape(-1)
        lanes = np.empty(meanings.size, dtype=object)
        for i, (meaning, sign) in enumerate(meanings):
            lanes[i] = Coefficient(meaning, sign, value, i, shape)
        return lanes.reshape(shape)

    def spread(self, coefficients: Lanes, axes: tuple[int, ...]) -> Lanes:
        """Coefficients whose table's axes are those `axes` of the tensor before the lanes."""
        lanes = np.empty(coefficients.shape, dtype=object)
        for index, c in np.ndenumerate(coefficients):
            meaning = self._intern(("spread", axes, c.meaning))
            if c.meaning in self.angle_of:
                self.angle_of[meaning] = self.angle_of[c.meaning]
            lanes[index] = replace(c, meaning=meaning, aligned=False)
        return lanes

    def _meaning(self, value: ir.Value, shape: Shape) -> Lanes:
        key = (value, shape)
        if key not in self._coefficients:
            found = move(self.facts, value, shape, self._meaning)
            self._coefficients[key] = found if found is not None else self._derived(value, shape)
        return self._coefficients[key]

    def _intern(self, form: Hashable) -> int:
        return self._meanings.setdefault(form, len(self._meanings))

    def _derived(self, value: ir.Value, shape: Shape) -> Lanes:
        """Meanings through functions and moves of rows, which treat every lane alike."""
        facts, node = self.facts, value.producer()
        if (
            facts.constant(value)
            and (array := facts.array(value)) is not None
            and array.size <= 2**22
        ):
            columns = np.ascontiguousarray(
                np.moveaxis(array.reshape(-1, int(np.prod(shape))), 0, -1)
            )
            return _boxed([(self._intern(c.tobytes()), 1) for c in columns], shape)
        if node is not None and node.domain == "" and node.inputs and node.inputs[0] is not None:
            first = node.inputs[0]
            others = tuple(-1 if v is None else facts.key(v) for v in node.inputs[1:])
            same = lane_shape(facts.dims(first), len(shape)) == shape
            if node.op_type in ("Neg", "Sin", "Cos") and same:
                return self._mapped(
                    first, shape, node.op_type, "even" if node.op_type == "Cos" else "odd"
                )
            if node.op_type in ROW_MOVES and same and self._keeps_lanes(node, value, len(shape)):
                form: Hashable = (
                    node.op_type,
                    str(sorted((k, str(a.value)) for k, a in node.attributes.items())),
                    others,
                )
                return self._mapped(first, shape, form, "odd")
            if node.op_type in ("Mul", "Div", "Add") and len(node.inputs) == 2:
                data = [
                    v
                    for v in node.inputs
                    if v is not None and lane_shape(facts.dims(v), len(shape)) == shape
                ]
                rest = [v for v in node.inputs if v is not None and v not in data]
                if len(data) == 1 and len(rest) == 1:
                    form = (node.op_type, facts.key(rest[0]), data[0] is first)
                    return self._mapped(
                        data[0], shape, form, "" if node.op_type == "Add" else "odd"
                    )
        name = facts.key(value)
        return _boxed([(self._intern((name, i)), 1) for i in range(int(np.prod(shape)))], shape)

    def _keeps_lanes(self, node: ir.Node, value: ir.Value, count: int) -> bool:
        """Whether a move touches only the axes before the lanes."""
        facts, first = self.facts, node.inputs[0]
        before, dims = facts.dims(first), facts.dims(value)
        if before is None or dims is None:
            return False
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", list(range(len(before)))[::-1])
            return list(perm[-count:]) == list(range(len(before) - count, len(before)))
        if node.op_type == "Gather":
            return node.attributes.get_int("axis", 0) % len(before) < len(before) - count
        axes = facts.axes(node)
        if node.op_type == "Slice":
            return axes is not None and all(a < len(before) - count for a in axes)
        return True

    def _mapped(self, below: ir.Value, shape: Shape, form: Hashable, parity: str) -> Lanes:
        """The meanings of a function of every lane; parity: what a minus sign becomes (odd: passes, even: is lost)."""
        lanes = self._meaning(below, shape).reshape(-1)
        if form == "Neg":
            return _boxed([(m, -s) for m, s in lanes], shape)
        entries = []
        for meaning, sign in lanes:
            new = self._intern((form, meaning, 1 if parity else sign))
            entries.append((new, sign if parity == "odd" else 1))
            kind = form[0] if isinstance(form, tuple) else form
            if kind in ("Cos", "Sin"):
                self.angle_of[new] = self._plain.get(meaning, meaning)
            elif meaning in self.angle_of:
                self.angle_of[new] = self.angle_of[meaning]
            if kind in VIEWS:
                self._plain[new] = self._plain.get(meaning, meaning)
        return _boxed(entries, shape)


def _boxed(entries: list[tuple[int, int]], shape: Shape) -> Lanes:
    lanes = np.empty(len(entries), dtype=object)
    lanes[:] = entries
    return lanes.reshape(shape)
