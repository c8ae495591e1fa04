"""New nodes of a rescaled graph: a value times a power of two, once for all that read it so."""

import numpy as np
import onnx_ir as ir

from .report import PrecisionReport


class Factors:
    """The factors that the values of one graph carry, and the Mul nodes that change them.

    held: exponent of every value, new ones too. source: new value -> the one whose numbers it holds.
    """

    def __init__(self, graph: ir.Graph, report: PrecisionReport) -> None:
        self.graph, self.report = graph, report
        self.held: dict[ir.Value, int] = {}
        self.source: dict[ir.Value, ir.Value] = {}
        self._times: dict[tuple[ir.Value, int], ir.Value] = {}

    def edge(self, node: ir.Node, index: int, wanted: int) -> None:
        """Let the node read the operand at the exponent `wanted`, through a new Mul."""
        value = node.inputs[index]
        assert value is not None
        times = self.scaled(value, wanted)
        node.replace_input_with(index, times)

    def scaled(self, value: ir.Value, wanted: int) -> ir.Value:
        known = self._times.get((value, wanted))
        if known is not None:
            return known
        bits = wanted - self.held.get(value, 0)
        node, result = self._mul(value, bits)
        producer = value.producer()
        if producer is not None and producer.graph is self.graph:
            self.graph.insert_after(producer, node)
        else:
            self.graph.insert_before(next(iter(self.graph)), node)
        self.held[result], self.source[result] = wanted, self.source.get(value, value)
        self._times[value, wanted] = result
        return result

    def after(self, node: ir.Node, value: ir.Value, bits: int) -> None:
        """The node gives `value` unscaled (bits more); a new Mul makes what everyone reads."""
        mul, result = self._mul(value, bits)
        wanted = self.held.get(value, 0)
        for use in list(value.uses()):
            if use.node is not mul:
                use.node.replace_input_with(use.idx, result)
        for position, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[position] = result
                value.name, result.name = f"{value.name}/unscaled", value.name
        self.graph.insert_after(node, mul)
        self.held[result], self.held[value] = wanted, wanted - bits
        self.source[result] = self.source.get(value, value)

    def _mul(self, value: ir.Value, bits: int) -> tuple[ir.Node, ir.Value]:
        factor = self._constant(2.0**-bits)
        result = ir.Value(
            name=f"{value.name}/times_2^{-bits}",
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=value.shape,
        )
        node = ir.Node("", "Mul", [value, factor], name=f"{result.name}/Mul", outputs=[result])
        self.report.inserted[str(result.name)] = bits
        return node, result

    def _constant(self, number: float) -> ir.Value:
        name = f"power_of_two/{number!r}"
        if name not in self.graph.initializers:
            tensor = ir.tensor(np.array(number, dtype=np.float32), name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([]), const_value=tensor
            )
            self.graph.initializers[name] = value
        return self.graph.initializers[name]

    def restore_output(self, position: int, value: ir.Value, bits: int) -> None:
        """Give the graph's output its true numbers again."""
        name = str(value.name)
        mul, result = self._mul(value, -bits)
        value.name = f"{name}/scaled"
        result.name = name
        producer = value.producer()
        assert producer is not None
        self.graph.insert_after(producer, mul)
        self.graph.outputs[position] = result
        self.held[result], self.source[result] = 0, self.source.get(value, value)
