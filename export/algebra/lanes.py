"""Each lane of a value as a sum of products: sign * source lane * coefficient lane.

    x * cos + concat(-x[half:], x[:half]) * sin
    lane 0 -> +x[0] * cos[0]  -x[half] * sin[0]

Coefficients (the angles' cosines and sines) are compared by meaning: the two halves of concat(f, f) are equal.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .coefficients import Coefficient, CoefficientReader
from .contractions import LONGEST, contraction
from .facts import FLOATS, Facts
from .lane_shapes import Lanes, Shape, lane_shape
from .moves import move


@dataclass(frozen=True, slots=True)
class Term:
    """sign * source[..., at] * coefficient."""

    sign: int
    source: ir.Value
    at: int
    coefficient: Coefficient | None = None


Sum = tuple[Term, ...]


class LaneReader:
    """Lanes of one graph's values, computed when asked."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._data: dict[tuple[ir.Value, Shape], Lanes] = {}
        self.coefficients = CoefficientReader(facts)

    def data(self, value: ir.Value, shape: Shape) -> Lanes:
        """The lanes of `value` as sums of terms; a value that is no such sum is its own source."""
        key = (value, shape)
        if key not in self._data:
            found = self._linear(value, shape)
            self._data[key] = found if found is not None else self.source(value, shape)
        return self._data[key]

    def source(self, value: ir.Value, shape: Shape) -> Lanes:
        """The lanes of a value that is not taken apart."""
        lanes = np.empty(int(np.prod(shape)), dtype=object)
        for i in range(lanes.size):
            lanes[i] = (Term(1, value, i),)
        return lanes.reshape(shape)

    def read(self) -> list[tuple[ir.Value, Shape, Lanes]]:
        """Every value read so far with its lanes."""
        return [(value, shape, lanes) for (value, shape), lanes in self._data.items()]

    def _linear(self, value: ir.Value, shape: Shape) -> Lanes | None:
        moved = move(self.facts, value, shape, self.data)
        if moved is not None:
            return moved
        node = value.producer()
        if node is None or node.domain or self.facts.dtype(value) not in FLOATS:
            return None
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type == "Neg":
            return self._signed(self.data(inputs[0], shape), -1)
        if node.op_type in ("Add", "Sub"):
            return self._sum(node, inputs, shape)
        if node.op_type == "Mul":
            return self._product(inputs, shape)
        if node.op_type == "MatMul" and (found := self._permuted(inputs, shape)) is not None:
            return found
        if node.op_type in ("MatMul", "Einsum"):
            return self._contracted(node, shape)
        if node.op_type == "ReduceSum":
            return self._added_up(node, inputs[0], shape)
        return None

    @staticmethod
    def _signed(lanes: Lanes, sign: int | np.ndarray) -> Lanes:
        signs = np.broadcast_to(np.asarray(sign), lanes.shape)
        result = np.empty(lanes.shape, dtype=object)
        for index, terms in np.ndenumerate(lanes):
            result[index] = tuple(
                Term(int(signs[index]) * t.sign, t.source, t.at, t.coefficient) for t in terms
            )
        return result

    def _sum(self, node: ir.Node, inputs: list[ir.Value], shape: Shape) -> Lanes | None:
        if any(lane_shape(self.facts.dims(v), len(shape)) != shape for v in inputs):
            return None
        parts = [self.data(v, shape) for v in inputs]
        if any(t.coefficient is None for p in parts for terms in p.reshape(-1) for t in terms):
            return None  # an ordinary addition: what it adds is not rotated
        if node.op_type == "Sub":
            parts[1] = self._signed(parts[1], -1)
        result = np.empty(shape, dtype=object)
        for index, terms in np.ndenumerate(parts[0]):
            result[index] = (*terms, *parts[1][index])
        return result

    def _product(self, inputs: list[ir.Value], shape: Shape) -> Lanes | None:
        for data, factor in (inputs, inputs[::-1]):
            own = lane_shape(self.facts.dims(data), len(shape))
            whole = lane_shape(self.facts.dims(factor), len(shape)) == shape
            if own is None or not whole or not _spreads(own, shape):
                if (signs := self._signs(factor, shape)) is not None:
                    return self._signed(self.data(data, shape), signs)
                continue
            if not self.coefficients.angle(factor, data):
                continue
            lanes = np.broadcast_to(self._uncoloured(data, own), shape)
            coefficients = self.coefficients.coefficient(factor, shape)
            result = np.empty(shape, dtype=object)
            for index, terms in np.ndenumerate(lanes):
                c: Coefficient = coefficients.item(index)
                result[index] = tuple(Term(t.sign * c.sign, t.source, t.at, c) for t in terms)
            return result
        for data, factor in (inputs, inputs[::-1]):
            if (signs := self._signs(factor, shape)) is not None and lane_shape(
                self.facts.dims(data), len(shape)
            ) == shape:
                return self._signed(self.data(data, shape), signs)
        return None

    def _uncoloured(self, value: ir.Value, shape: Shape) -> Lanes:
        """The lanes of a value that coefficients are about to multiply."""
        lanes = self.data(value, shape)
        if any(t.coefficient is not None for terms in lanes.reshape(-1) for t in terms):
            return self.source(value, shape)
        return lanes

    def _contracted(self, node: ir.Node, shape: Shape) -> Lanes | None:
        """A product with matrices of coefficients."""
        found = contraction(self.facts, node, shape, self.coefficients.angle)
        if found is None:
            return None
        lanes = self._uncoloured(found.data, found.data_shape)[found.data_index]
        coefficients = self.coefficients.coefficient(found.factor, found.factor_shape)
        if found.spread is not None:
            coefficients = self.coefficients.spread(coefficients, found.spread)
        factors = coefficients[found.factor_index]
        result = np.empty(shape, dtype=object)
        for index in np.ndindex(shape):
            result[index] = tuple(
                Term(t.sign * c.sign, t.source, t.at, c)
                for terms, c in zip(lanes[index], factors[index], strict=True)
                for t in terms
            )
        return result

    def _added_up(self, node: ir.Node, below: ir.Value, shape: Shape) -> Lanes | None:
        """The sum of products over one short axis of the lanes."""
        axes, dims = self.facts.axes(node), self.facts.dims(below)
        if axes is None or dims is None or len(axes) != 1:
            return None
        kept = node.attributes.get_int("keepdims", 1) == 1
        count = len(shape) + (not kept)
        inside, at = lane_shape(dims, count), axes[0] - len(dims) + count
        if inside is None or at < 0 or inside[at] > LONGEST:
            return None
        lanes = np.moveaxis(self.data(below, inside), at, -1)
        if any(t.coefficient is None for terms in lanes.reshape(-1) for t in terms):
            return None
        result = np.empty(lanes.shape[:-1], dtype=object)
        for index in np.ndindex(result.shape):
            result[index] = tuple(t for terms in lanes[index] for t in terms)
        return result.reshape(shape)

    def _signs(self, value: ir.Value, shape: Shape) -> np.ndarray | None:
        """A constant of plus and minus ones along the lanes."""
        dims = self.facts.dims(value)
        if (
            not self.facts.constant(value)
            or dims is None
            or any(d != 1 for d in dims[: max(len(dims) - len(shape), 0)])
        ):
            return None
        array = self.facts.array(value)
        if array is None or not np.isin(array, (-1, 1)).all():
            return None
        return array.astype(np.int64).reshape(array.shape[max(array.ndim - len(shape), 0) :])

    def _permuted(self, inputs: list[ir.Value], shape: Shape) -> Lanes | None:
        """x @ R with R a signed permutation of the lanes (rotate_half written as a product)."""
        if (
            len(shape) != 1
            or not self.facts.constant(inputs[1])
            or self.facts.dims(inputs[1]) != (shape[0], shape[0])
        ):
            return None
        matrix = self.facts.array(inputs[1])
        if (
            matrix is None
            or not np.isin(matrix, (-1, 0, 1)).all()
            or not (np.abs(matrix).sum(axis=0) == 1).all()
        ):
            return None
        rows = np.abs(matrix).argmax(axis=0)
        lanes = self.data(inputs[0], shape)
        return self._signed(lanes[rows], matrix[rows, np.arange(shape[0])].astype(np.int64))


def _spreads(own: Shape, shape: Shape) -> bool:
    """Whether lanes of these sizes spread to `shape`."""
    return all(a in (1, b) for a, b in zip(own, shape, strict=True))
