"""Streams: values that must carry one factor, and the powers of two that bring each into the 16-bit range.

residual additions, moves and rotary embeddings tie values together; weights, norms and gates stand between streams
"""

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from .laws import Kind, Law, law_of, operand
from .structure import MOVES, Reasons, is_constant, is_float

_THROUGH = MOVES - {"Gather", "Where", "ConstantOfShape", "GatherND", "GatherElements"}


class Streams:
    """The streams of the main graph, and the exponent of each: a value is held as value * 2^-exponent."""

    def __init__(self, graph: ir.Graph, kept: set[ir.Value]) -> None:
        """kept: values that must stay as they are; `fixed` are these and what inner graphs read."""
        self.kept = kept
        self.graph = graph
        self.laws: dict[ir.Node, Law] = {node: law_of(node) for node in graph}
        self._parent: dict[ir.Value, ir.Value] = {}
        self.fixed = set(kept)
        self.constants: set[ir.Value] = set()  # what only moves one weight
        for node in graph:
            self._see(node)
        self.members: dict[ir.Value, list[ir.Value]] = {}
        for value in self._parent:
            self.members.setdefault(self.root(value), []).append(value)
        self.locked = {self.root(v) for v in self.fixed if v in self._parent}
        self.exponents: dict[ir.Value, int] = {}

    def _see(self, node: ir.Node) -> None:
        law = self.laws[node]
        moves = node.op_type in _THROUGH and len(node.outputs) == 1
        if moves and self.constant(node.inputs[0]) is not None:
            self.constants.update(node.outputs)
            return
        for value in node.outputs:
            if is_float(value):
                self._parent[value] = value
                if any(use.node.graph is not self.graph for use in value.uses()):
                    self.fixed.add(value)
        tied = [node.outputs[i] for i in law.outputs] if law.kind is Kind.SAME else []
        if law.total is not None:
            tied = [node.outputs[law.total]]
        if law.kind is Kind.SAME or law.total is not None:
            tied += [v for i in law.data if (v := operand(node, i)) is not None]
        tied = [v for v in tied if v in self._parent]
        for value in tied[1:]:
            self._parent[self.root(value)] = self.root(tied[0])

    def constant(self, value: ir.Value | None) -> ir.Value | None:
        """The weight that a value is, or that it only moves while nothing else reads the moved form."""
        while value is not None and value in self.constants:
            producer = value.producer()
            if len(value.uses()) != 1 or value.is_graph_output() or producer is None:
                return None
            value = producer.inputs[0]
        return value if value is not None and is_constant(value) and is_float(value) else None

    def root(self, value: ir.Value) -> ir.Value:
        """The value that stands for the stream."""
        while self._parent.get(value, value) is not value:
            value = self._parent[value]
        return value

    def exponent(self, value: ir.Value | None) -> int:
        """How many bits the value is held smaller; 0 outside streams (inputs, weights, subgraphs)."""
        if value is None or value not in self._parent:
            return 0
        return self.exponents.get(self.root(value), 0)

    def boundary(self, root: ir.Value) -> tuple[list[ir.Node], list[ir.Node]]:
        """Nodes that write into the stream and nodes that read it."""
        writers = [n for v in self.members[root] if (n := v.producer()) is not None]
        readers = [use.node for v in self.members[root] for use in v.uses()]
        return list(dict.fromkeys(writers)), list(dict.fromkeys(readers))

    def choose(self, needs: Mapping[ir.Value, int], wide: Reasons) -> None:
        """Set the exponents that `needs` (bits a value passes the range by) asks for, and those that follow."""
        for value, bits in needs.items():
            if value in self._parent and bits > 0 and self.root(value) not in self.locked:
                root = self.root(value)
                self.exponents[root] = max(bits, self.exponents.get(root, 0))
        self._follow(list(self.exponents), wide)

    def lift(self, roots: Sequence[ir.Value], bits: int, wide: Reasons) -> None:
        """Hold these streams, which have no exponents yet, 2^bits times larger, and let statistics follow."""
        self.exponents |= dict.fromkeys(roots, -bits)
        self._follow(list(roots), wide)

    def link(self, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
        """The activation whose factor the result of a product, gate or attention has by nature, and that result."""
        law = self.laws[node]
        if law.kind not in (Kind.PRODUCT, Kind.GATED, Kind.ATTENTION):
            return None
        inputs = [operand(node, i) for i in law.data]
        carrier = inputs[-1]
        if carrier is None or carrier in inputs[:-1]:
            return None
        if law.kind is Kind.PRODUCT and any(self.constant(v) is not None for v in inputs):
            return None
        return carrier, node.outputs[0]

    def _follow(self, queue: list[ir.Value], wide: Reasons) -> None:
        while queue:
            root = queue.pop()
            writers, readers = self.boundary(root)
            for node in writers:
                queue += self._pull(node, root)
            for node in readers:
                queue += self._push(node, wide)

    def _pull(self, node: ir.Node, root: ir.Value) -> list[ir.Value]:
        """Let what feeds a product of two activations carry the factor that its result must have."""
        law, wanted = self.laws[node], self.exponents[root]
        if law.kind not in (Kind.PRODUCT, Kind.GATED, Kind.ATTENTION):
            return []
        inputs = [operand(node, i) for i in law.data]
        if law.kind is Kind.PRODUCT:
            if any(self.constant(v) is not None for v in inputs):
                return []
            if sum(self.exponent(v) for v in inputs) >= wanted:
                return []
        candidates = inputs[::-1] if law.kind is Kind.PRODUCT else inputs[-1:]
        for value in candidates:
            if value is not None and value in self._parent and self._free(value, node):
                self.exponents[self.root(value)] = wanted
                return [self.root(value)]
        return []

    def _free(self, value: ir.Value, reader: ir.Node) -> bool:
        """Whether the value's stream can take a factor without a new node: written by weights, read by `reader`."""
        root = self.root(value)
        if root in self.locked or root in self.exponents:
            return False
        writers, readers = self.boundary(root)
        if any(v.is_graph_output() for v in self.members[root]):
            return False
        absorb = all(self.laws[n].kind is Kind.SAME or self._weighted(n) for n in writers)
        return absorb and all(
            n is reader
            or (self.laws[n].kind is Kind.SAME and n in writers)
            or (self.laws[n].kind is Kind.PRODUCT and self._weighted(n))
            or self.laws[n].kind is Kind.NORM
            for n in readers
        )

    def _weighted(self, node: ir.Node) -> bool:
        law = self.laws[node]
        if law.kind is Kind.NORM:
            return bool(law.weights)
        values = [operand(node, i) for i in law.data]
        return law.kind is Kind.PRODUCT and any(self.constant(v) is not None for v in values)

    def _push(self, node: ir.Node, wide: Reasons) -> list[ir.Value]:
        """Let statistics in FP32 carry the factor of what they are taken from, until it drops out."""
        law = self.laws.get(node)
        if law is None or node not in wide or law.kind in (Kind.NONE, Kind.SAME, Kind.NORM):
            return []
        natural = self.natural(node)
        result = node.outputs[0]
        if natural is None or result not in self._parent:
            return []
        root = self.root(result)
        writers, readers = self.boundary(root)
        ours = all(n in wide for n in (*writers, *readers))
        if root in self.locked or not ours or self.exponents.get(root, 0) == natural:
            return []
        if any(v.is_graph_output() for v in self.members[root]):
            return []
        self.exponents[root] = natural
        return [root]

    def natural(self, node: ir.Node) -> int | None:
        """The exponent that the result has when nothing is done; None where it is no whole number."""
        law = self.laws[node]
        values = [self.exponent(operand(node, i)) for i in law.data]
        if law.kind is Kind.PRODUCT:
            return sum(values)
        if law.kind is Kind.QUOTIENT:
            return values[0] - values[1]
        if law.kind is Kind.POWER:
            exact = values[0] * law.power
            return int(exact) if exact.denominator == 1 else None
        return {Kind.GATED: values[-1], Kind.ATTENTION: values[-1], Kind.NORM: 0}.get(law.kind, 0)


def bits_beyond(size: float, limit: float) -> int:
    """How many halvings bring `size` to `limit` or below."""
    return max(0, math.ceil(math.log2(size / limit))) if size > limit else 0
