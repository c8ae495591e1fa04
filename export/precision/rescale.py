"""Write the chosen exponents into the FP32 graph: it computes the same numbers, held as number * 2^-exponent.

Each node settles what its operands bring against what its result must carry, in its weight, its epsilon or, where it
has neither, in a new Mul by a power of two. So any choice of exponents is right; a good one needs few new nodes.
Exact in FP32 but for subnormal numbers: a power of two changes no bit of a mantissa.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .factors import Factors
from .laws import Kind, Law, operand
from .report import Change, PrecisionReport
from .streams import Streams
from .structure import is_float
from .weights import Weights, scaled_tensor

COPIED = 4096  # elements: a smaller constant is copied where two readers need two factors


@dataclass(frozen=True, slots=True)
class _Absorb:
    """Wish: the weight that `node` reads at `index` divided by 2^bits."""

    weight: ir.Value
    node: ir.Node
    index: int
    bits: int


class Rescaling(Factors):
    """One rewrite of one model."""

    def __init__(
        self, model: ir.Model, streams: Streams, weights: Weights, report: PrecisionReport
    ) -> None:
        super().__init__(model.graph, report)
        self.streams, self.weights = streams, weights
        self.wishes: list[_Absorb] = []

    def apply(self) -> None:
        """Change the graph."""
        streams = self.streams
        nodes = list(self.graph)
        for node in nodes:
            for value in node.outputs:
                self.held[value] = streams.exponent(value)
        if not any(streams.exponents.values()):
            return
        for node in nodes:
            self._settle(node, streams.laws[node])
        self._grant()
        for position, value in enumerate(list(self.graph.outputs)):
            if bits := self.held.get(value, 0):
                self.restore_output(position, value, bits)

    def _settle(self, node: ir.Node, law: Law) -> None:
        settle = {
            Kind.SAME: self._same,
            Kind.PRODUCT: self._product,
            Kind.QUOTIENT: self._product,
            Kind.NORM: self._norm,
            Kind.GATED: self._gated,
            Kind.ATTENTION: self._attention,
            Kind.POWER: self._power,
            Kind.NONE: self._plain,
        }
        settle[law.kind](node, law)

    def _bits(self, node: ir.Node, index: int) -> int:
        return self.held.get(operand(node, index), 0) if operand(node, index) else 0  # type: ignore[arg-type]

    def _wanted(self, node: ir.Node) -> int:
        return self.held.get(node.outputs[0], 0)

    def _same(self, node: ir.Node, law: Law) -> None:
        wanted = self._wanted(node)
        for index in law.data:
            self._give(node, index, wanted)
        for index in range(len(node.inputs)):
            if index not in law.data and self._bits(node, index):
                self.edge(node, index, 0)

    def _give(self, node: ir.Node, index: int, wanted: int) -> None:
        """Let the operand come with the exponent `wanted`."""
        value = operand(node, index)
        if value is None or (value in self.streams.constants and not wanted):
            return
        weight = self.streams.constant(value)
        if weight is not None:
            if wanted:
                self.wishes.append(_Absorb(weight, node, index, wanted))
        elif self.held.get(value, 0) != wanted:
            self.edge(node, index, wanted)

    def _product(self, node: ir.Node, law: Law) -> None:
        wanted = self._wanted(node)
        for index in law.weights:
            self._give(node, index, wanted)
        natural = self._bits(node, 0) + (1 if law.kind is Kind.PRODUCT else -1) * self._bits(
            node, 1
        )
        if missing := wanted - natural:
            self._make_up(node, law, missing)

    def _make_up(self, node: ir.Node, law: Law, missing: int) -> None:
        """Bring `missing` bits into a product through its weight, an operand, or its result."""
        for index in reversed(law.data):
            weight = self.streams.constant(operand(node, index))
            sign = -1 if law.kind is Kind.QUOTIENT and index == 1 else 1
            if weight is not None and self.weights.fits(weight, sign * missing):
                self.wishes.append(_Absorb(weight, node, index, sign * missing))
                return
        self._outside(node, missing)

    def _outside(self, node: ir.Node, missing: int) -> None:
        """Without a weight: smaller before the product (it may not fit after), larger after it."""
        law = self.streams.laws[node]
        if missing > 0 and law.kind is not Kind.POWER and law.kind is not Kind.NONE:
            index = 0 if law.kind is Kind.QUOTIENT else law.data[-1]
            if node.inputs[0] is node.inputs[index] and law.kind is Kind.PRODUCT:
                index = 1
            self.edge(node, index, self._bits(node, index) + missing)
        else:
            self.after(node, node.outputs[0], missing)

    def _norm(self, node: ir.Node, law: Law) -> None:
        bits = self._bits(node, law.data[0])
        total = node.outputs[law.total] if law.total is not None else None
        if total is not None:
            bits = self.held.get(total, 0)
        for index in law.data:
            self._give(node, index, bits)
        if bits:
            for name, power, default in (("epsilon", 2, 1e-5), ("epsilon_outside", 1, 0.0)):
                before = node.attributes.get_float(name, float(np.float32(default)))
                if before:
                    self._attribute(node, name, before, before * 2.0 ** (-power * bits))
        if wanted := self._wanted(node):
            if law.weights and all(
                operand(node, i) is None or self.streams.constant(operand(node, i)) is not None
                for i in law.weights
            ):
                for index in law.weights:
                    self._give(node, index, wanted)
            else:
                self.after(node, node.outputs[0], wanted)

    def _gated(self, node: ir.Node, law: Law) -> None:
        if self._bits(node, 0):
            self.edge(node, 0, 0)
        if missing := self._wanted(node) - self._bits(node, 1):
            self._outside(node, missing)

    def _attention(self, node: ir.Node, law: Law) -> None:
        bits = self._bits(node, 0) + self._bits(node, 1)
        scale = node.attributes.get_float("scale", 0.0)
        if bits and scale:
            self._attribute(node, "scale", scale, scale * 2.0**bits)
        elif bits:
            for index in (0, 1):
                self._give(node, index, 0)
        for index in range(3, len(node.inputs)):
            self._give(node, index, 0)
        if missing := self._wanted(node) - self._bits(node, 2):
            self._outside(node, missing)

    def _power(self, node: ir.Node, law: Law) -> None:
        natural = self._bits(node, 0) * law.power
        if natural.denominator != 1:
            self.edge(node, 0, 0)
            natural *= 0
        if missing := self._wanted(node) - int(natural):
            self.after(node, node.outputs[0], missing)

    def _plain(self, node: ir.Node, law: Law) -> None:
        for index in range(len(node.inputs)):
            if self._bits(node, index):
                self.edge(node, index, 0)
        for value in node.outputs:
            if bits := self.held.get(value, 0):
                self.after(node, value, bits)

    def _attribute(self, node: ir.Node, name: str, before: float, after: float) -> None:
        node.attributes[name] = ir.AttrFloat32(name, after)
        self.report.attributes.append(Change(f"{node.name or node.op_type}: {name}", before, after))

    def _grant(self) -> None:
        """Scale each weight as its readers wish; where they differ, a copy (small) or a Mul (large, tied)."""
        by_weight: defaultdict[ir.Value, list[_Absorb]] = defaultdict(list)
        for wish in self.wishes:
            by_weight[wish.weight].append(wish)
        for weight, wishes in by_weight.items():
            bits = {w.bits for w in wishes}
            readers = len(weight.uses())
            if len(bits) == 1 and readers == len(wishes) and not weight.is_graph_output():
                self._scale_weight(weight, bits.pop())
            elif self.weights.size(weight) <= COPIED:
                for wish in wishes:
                    self._copy(wish)
            else:
                for wish in wishes:
                    self._without_weight(wish)

    def _scale_weight(self, weight: ir.Value, bits: int) -> None:
        assert weight.const_value is not None
        weight.const_value = scaled_tensor(weight.const_value, bits)
        self.weights.rescaled(weight, bits)
        name = str(weight.name)
        self.report.scaled[name] = bits + self.report.scaled.get(name, 0)

    def lift(self, weight: ir.Value, readers: Sequence[tuple[ir.Node, int]], bits: int) -> None:
        """Hold a weight 2^bits times larger than it is now; all its readers, with the place, get a Mul behind them."""
        self._scale_weight(weight, -bits)
        self.wishes = []
        for node, index in readers:
            for other in self.companions(node, index):
                self._give(node, other, -bits)
        self._grant()
        for node, _ in readers:
            self.after(node, node.outputs[0], bits)

    def companions(self, node: ir.Node, index: int) -> tuple[int, ...]:
        """Operands beside the one at `index` that have its factor too: a bias, or a norm's other weight."""
        law = self.streams.laws[node]
        return tuple(i for i in law.weights if i != index and operand(node, i) is not None)

    def _copy(self, wish: _Absorb) -> None:
        value = wish.node.inputs[wish.index]
        assert value is not None and wish.weight.const_value is not None
        if value is not wish.weight:  # behind a move: scale what it gives
            wish.node.replace_input_with(wish.index, self.scaled(value, wish.bits))
            return
        name = f"{wish.weight.name}/times_2^{-wish.bits}"
        if name not in self.graph.initializers:
            tensor = scaled_tensor(wish.weight.const_value, wish.bits, name)
            self.graph.initializers[name] = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=wish.weight.shape,
                const_value=tensor,
            )
            self.report.scaled[name] = wish.bits
        wish.node.replace_input_with(wish.index, self.graph.initializers[name])

    def _without_weight(self, wish: _Absorb) -> None:
        node, law = wish.node, self.streams.laws[wish.node]
        if law.kind is Kind.PRODUCT and wish.index in law.data:
            other = law.data[1 - law.data.index(wish.index)]
            if wish.bits > 0 and is_float(node.inputs[other]):
                self.edge(node, other, self._bits(node, other) + wish.bits)
            else:
                self.after(node, node.outputs[0], wish.bits)
        elif law.kind is Kind.SAME and len(law.data) == 1:
            for value in node.outputs:  # a table with another reader: scale the rows, not the table
                self.after(node, value, wish.bits)
        else:
            self.edge(node, wish.index, wish.bits)
