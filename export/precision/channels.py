"""Which channels can have a power of two of their own: those that only weights make and only weights read.

    begin      rows of a linear, of a norm's weight, with their biases
    pass       moves, Relu, a bias, the factor of a gate, the values of an attention: each channel by itself
    end        columns of a linear
    are held   by whatever mixes them or sees their size: sums of two values, statistics, rotations, nonlinearities,
               scores, outputs, a weight that something else reads too

Each channel that begins gets a number; what passes keeps it, so equal numbers must have equal exponents.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .channel_moves import moved, per_query_head
from .laws import Kind, Law, operand
from .streams import Streams
from .structure import scalar

Place = tuple[ir.Value, int]  # a weight and one of its axes, as it is stored


@dataclass(frozen=True, slots=True)
class Along:
    """A weight and the numbers of the channels along one of its axes, as it is stored."""

    weight: ir.Value
    axis: int
    channels: np.ndarray


class Channels:
    """The channels of the main graph.

    of: value -> their numbers, with the value's rank (channel_moves). count: how many numbers there are. made, biases,
    read: the weights that channels begin in, have added, and end in. free: number -> whether it can have an exponent.
    """

    def __init__(self, streams: Streams) -> None:
        """streams: of the same graph; its `fixed` values stay as they are."""
        self.streams = streams
        self.of: dict[ir.Value, np.ndarray] = {}
        self.made: list[Along] = []
        self.biases: list[Along] = []
        self.read: list[Along] = []
        self.count = 0
        self._begin: list[int] = []
        self._began: list[ir.Value] = []
        self._held: list[np.ndarray] = []
        self._products: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for node in streams.graph:
            passed = self._see(node, streams.laws[node])
            for index, value in enumerate(node.inputs):
                if index not in passed:
                    self._hold(value)
        for value in self.of:
            if value.is_graph_output() or value in streams.fixed:
                self._hold(value)
        self._resolve()

    def origin(self, number: int) -> ir.Value:
        """The value in which a channel begins."""
        return self._began[int(np.searchsorted(self._begin, number, side="right")) - 1]

    def _see(self, node: ir.Node, law: Law) -> Sequence[int]:
        """Note what the node does to channels; returns the inputs whose channels may have exponents."""
        see = {
            Kind.NORM: self._norm,
            Kind.PRODUCT: self._mul if node.op_type == "Mul" else self._linear,
            Kind.QUOTIENT: self._by_number,
            Kind.GATED: self._gate,
            Kind.ATTENTION: self._attention,
            Kind.SAME: self._add if node.op_type in ("Add", "Sub") else self._move,
        }.get(law.kind)
        return see(node, law) if see is not None else ()

    def _hold(self, value: ir.Value | None) -> None:
        if value in self.of:
            self._held.append(self.of[value])

    def _give(self, value: ir.Value, channels: np.ndarray | None) -> bool:
        """Let the value have these channels; False where its sizes are not theirs."""
        shape = None if channels is None else value.shape
        if channels is None or shape is None or len(shape) != channels.ndim:
            return False
        if any(size not in (1, dim) for size, dim in zip(channels.shape, shape, strict=True)):
            return False
        self.of[value] = channels
        return True

    def _start(self, value: ir.Value, sizes: Sequence[int]) -> np.ndarray:
        """New channels of these sizes."""
        self._begin.append(self.count)
        self._began.append(value)
        numbers = self.count + np.arange(math.prod(sizes), dtype=np.int32)
        self.count += numbers.size
        self.of[value] = numbers.reshape(sizes)
        return numbers

    def _last(self, value: ir.Value | None) -> np.ndarray | None:
        """The channels of a value that has them along its last axis alone."""
        channels = self.of.get(value) if value is not None else None
        if channels is None or channels.size != channels.shape[-1]:
            return None
        return channels.reshape(-1)

    def _weight(self, value: ir.Value | None, axis: int) -> Place | None:
        """The weight behind a constant operand and its own axis for `axis`; None where another node reads it too."""
        weight = self.streams.constant(value)
        if value is None or weight is None or weight.is_graph_output() or len(weight.uses()) != 1:
            return None
        while value is not weight:
            node = value.producer()
            assert node is not None
            if node.op_type == "Transpose":
                axis = node.attributes.get_ints("perm", (1, 0))[axis]
            elif node.op_type != "Identity":
                return None
            value = node.inputs[0]
            assert value is not None
        return weight, axis

    def _vector(self, value: ir.Value | None, size: object) -> Place | None:
        """The weight behind a constant of `size` numbers, one a channel: [C], [1, C]."""
        dims = () if value is None or value.shape is None else value.shape.dims
        if not dims or dims[-1] != size or not set(dims[:-1]) <= {1}:
            return None
        return self._weight(value, len(dims) - 1)

    def _norm(self, node: ir.Node, law: Law) -> Sequence[int]:
        if law.weights:
            self._begins(node, law.weights)
        return ()

    def _begins(self, node: ir.Node, vectors: Sequence[int], matrix: Place | None = None) -> None:
        """New channels along the result's last axis: of the matrix or the first of the vectors; the others are added."""
        result = node.outputs[0]
        size = result.shape[-1] if result.shape is not None and len(result.shape) else None
        present = [v for i in vectors if (v := operand(node, i)) is not None]
        found = [matrix] * (matrix is not None) + [self._vector(v, size) for v in present]
        places = [place for place in found if place is not None]
        if not isinstance(size, int) or result.shape is None or len(places) < len(found):
            return
        numbers = self._start(result, [1] * (len(result.shape) - 1) + [size])
        made, *biases = [Along(*place, numbers) for place in places]
        self.made.append(made)
        self.biases += biases

    def _linear(self, node: ir.Node, law: Law) -> Sequence[int]:
        """MatMul and Gemm."""
        if node.op_type not in ("MatMul", "Gemm") or node.attributes.get_int("transA", 0) != 0:
            return ()
        weight = node.inputs[1]
        if weight is None or weight.shape is None or len(weight.shape) != 2:
            return self._mixture(node)
        axis = 0 if node.attributes.get_int("transB", 0) else 1
        out, into = self._weight(weight, axis), self._weight(weight, 1 - axis)
        if out is None or into is None:
            return ()
        self._begins(node, law.weights, out)
        return self._ends(node, 0, into)

    def _ends(self, node: ir.Node, index: int, place: Place) -> Sequence[int]:
        """The channels of an operand end in a weight."""
        channels = self._last(node.inputs[index])
        if channels is None:
            return ()
        self.read.append(Along(*place, channels))
        return (index,)

    def _mixture(self, node: ir.Node) -> Sequence[int]:
        """shares @ values: a sum over positions, each channel by itself."""
        channels = self.of.get(node.inputs[1]) if node.inputs[1] is not None else None
        if channels is None or channels.ndim < 3 or channels.shape[-2] != 1:
            return ()
        return (1,) if self._give(node.outputs[0], channels) else ()

    def _mul(self, node: ir.Node, law: Law) -> Sequence[int]:
        result, operands = node.outputs[0], [operand(node, i) for i in law.data]
        for index in (0, 1):
            if self.streams.constant(operands[index]) is not None:
                return self._by_constant(node, 1 - index, index)
        known = [self.of.get(v) if v is not None else None for v in operands]
        a, b = known
        if a is None or b is None:
            index = 0 if b is None else 1
            return (index,) if self._give(result, known[index]) else ()
        if a.shape != b.shape or not self._give(result, a):
            return ()
        y = self._start(result, a.shape)
        self._products.append((y, a.reshape(-1), b.reshape(-1)))
        return (0, 1)

    def _by_constant(self, node: ir.Node, index: int, factor: int) -> Sequence[int]:
        """x times one number for all, or times a weight of one number a channel, which ends and begins them."""
        value, result = node.inputs[index], node.outputs[0]
        if scalar(node.inputs[factor]) is not None:
            return (index,) if value in self.of and self._give(result, self.of[value]) else ()
        size = None if result.shape is None or not len(result.shape) else result.shape[-1]
        place = self._vector(node.inputs[factor], size)
        if place is None:
            return ()
        self._begins(node, (factor,))
        channels = self._last(value)
        whole = channels is not None and channels.size == size
        return self._ends(node, index, place) if whole else ()

    def _by_number(self, node: ir.Node, law: Law) -> Sequence[int]:
        return self._by_constant(node, 0, 1) if scalar(node.inputs[1]) is not None else ()

    def _gate(self, node: ir.Node, law: Law) -> Sequence[int]:
        up = node.inputs[1]
        return (1,) if up in self.of and self._give(node.outputs[0], self.of[up]) else ()

    def _attention(self, node: ir.Node, law: Law) -> Sequence[int]:
        query, _, value = (node.inputs[i] for i in law.data)
        channels = self.of.get(value) if value is not None else None
        if channels is None or query is None or value is None:
            return ()
        if channels.ndim == 3:
            heads = [node.attributes.get_int(f"{x}_num_heads", 0) for x in ("q", "kv")]
            passed = per_query_head(channels, heads[0], heads[1], 2)
        else:
            sizes = [None if v.shape is None else v.shape[1] for v in (query, value)]
            if not isinstance(sizes[0], int) or not isinstance(sizes[1], int):
                return ()
            passed = per_query_head(channels, sizes[0], sizes[1], 1)
        return (2,) if self._give(node.outputs[0], passed) else ()

    def _add(self, node: ir.Node, law: Law) -> Sequence[int]:
        """A bias takes the exponents of what it is added to; a sum of two values holds both."""
        for index in (0, 1):
            channels = self._last(node.inputs[index])
            if channels is None:
                continue
            place = self._vector(node.inputs[1 - index], channels.size)
            if place is None:
                continue
            rank = len(node.outputs[0].shape or ())
            if self._give(node.outputs[0], channels.reshape([1] * (rank - 1) + [channels.size])):
                self.biases.append(Along(*place, channels))
                return (index,)
        return ()

    def _move(self, node: ir.Node, law: Law) -> Sequence[int]:
        value = node.inputs[0]
        if value not in self.of or value is None:
            return ()
        results = moved(node, self.of[value])
        given = [self._give(v, c) for v, c in zip(node.outputs, results, strict=True)]
        used = [bool(v.uses()) or v.is_graph_output() for v in node.outputs]
        return (0,) if all(g or not u for g, u in zip(given, used, strict=True)) else ()

    def _resolve(self) -> None:
        """Give the result of a product the numbers of the factor that carries its exponents; the other is held."""
        held, same = np.zeros(self.count, bool), np.arange(self.count, dtype=np.int32)
        for channels in self._held:
            held[channels.reshape(-1)] = True
        for y, a, b in reversed(self._products):
            carrier, other = np.where(held[b], a, b), np.where(held[b], b, a)
            held[other] = True
            held[carrier[held[y]]] = True
            same[y] = carrier
        for y, _, _ in self._products:
            held[y] |= held[same[y]]
            same[y] = same[same[y]]
        self.free = ~held
        self.of = {v: same[c] for v, c in self.of.items()}
        self.made, self.biases, self.read = (
            [Along(w.weight, w.axis, same[w.channels]) for w in weights]
            for weights in (self.made, self.biases, self.read)
        )
