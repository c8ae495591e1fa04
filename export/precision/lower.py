"""Give every value its type: constants converted where they are stored, a Cast where a wide and a 16-bit node meet.

One Cast per value and type, right behind the node that makes the value; none undoes another.
"""

import numpy as np
import onnx_ir as ir

from ...graph.dtype_rules import output_types
from ...graph.type_names import type_name
from .masks import clamped
from .options import PrecisionOptions
from .prepare import FLOAT, operation
from .report import Change, PrecisionReport
from .structure import all_nodes, is_constant, is_float, takes_low
from .weights import Weights, typed_tensor

_CONTROL = ("If", "Loop", "Scan")


class Lowering:
    """One rewrite of one model."""

    def __init__(
        self,
        model: ir.Model,
        options: PrecisionOptions,
        types: dict[ir.Node, ir.DataType],
        weights: Weights,
        report: PrecisionReport,
    ) -> None:
        """types: the type of the nodes that are wide; every other node is 16 bit."""
        self.model, self.options, self.types, self.report = model, options, types, report
        self.floats = {v for g in model.graphs() for v in (*g.inputs, *g.initializers.values())}
        self.floats |= {v for n in all_nodes(model.graph) for v in n.outputs}
        self.floats = {v for v in self.floats if is_float(v)}
        self.weights = weights
        self.hidden: set[ir.Value] = set()
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def apply(self, hidden: set[ir.Value]) -> None:
        """Change the model. hidden: values whose finite numbers may be moved into the range (masks)."""
        self.hidden = hidden
        graph = self.model.graph
        if self.options.io == "graph":
            for value in graph.inputs:
                if value in self.floats:
                    value.type = ir.TensorType(self.options.low)
        self._graph(graph)
        wanted = FLOAT if self.options.io == "keep" else self.options.low
        self._outputs(graph, [wanted] * len(graph.outputs), keep_names=True)
        self._rename_constants()

    def type_of(self, node: ir.Node) -> ir.DataType:
        """The type of the node's float inputs and outputs."""
        return self.types.get(node, self.options.low)

    def _graph(self, graph: ir.Graph) -> None:
        for node in list(graph):
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    inner = attribute.as_graph()
                    self._graph(inner)
                    self._outputs(inner, [self.type_of(node)] * len(inner.outputs), False)
            self._node(node)

    def _node(self, node: ir.Node) -> None:
        target = self.type_of(node)
        for index, value in enumerate(node.inputs):
            if value is not None and value in self.floats:
                fits = takes_low(node, index, self.model, target)
                node.replace_input_with(index, self._as_type(value, target if fits else FLOAT))
        results = [v for v in node.outputs if v in self.floats]
        if not results:
            return
        if node.op_type == "Cast" and target != FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", target)
        if node.op_type == "ConstantOfShape" and target != FLOAT:
            filled = np.asarray(node.attributes["value"].as_tensor().numpy())
            moved = clamped(filled, self.options.limit).astype(target.numpy())
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(moved, dtype=target))
        given: list[ir.DataType | None] = [None] * len(node.outputs)
        if node.op_type not in _CONTROL and node.op_identifier() not in self.model.functions:
            types = tuple(None if v is None else v.dtype for v in node.inputs)
            given = list(output_types(operation(node, self.model), types))
        for value, dtype in zip(node.outputs, given, strict=True):
            if value in self.floats:
                value.type = ir.TensorType(dtype or target)

    def _outputs(self, graph: ir.Graph, wanted: list[ir.DataType], keep_names: bool) -> None:
        for position, value in enumerate(list(graph.outputs)):
            if value not in self.floats or value.dtype == wanted[position]:
                continue
            result = self._as_type(value, wanted[position], last=graph)
            if keep_names:
                name = value.name
                value.name = f"{name}/{type_name(value.dtype)}"
                result.name = name
            graph.outputs[position] = result

    def _as_type(
        self, value: ir.Value, dtype: ir.DataType, last: ir.Graph | None = None
    ) -> ir.Value:
        """The value in a type: itself, a converted constant, or the output of a Cast."""
        if value.dtype == dtype:
            return value
        known = self._made.get((value, dtype))
        if known is None:
            known = self._constant(value, dtype) if is_constant(value) else self._cast(value, dtype)
            self._made[value, dtype] = known
        return known

    def _constant(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        assert value.const_value is not None and value.graph is not None
        name = f"{value.name}/{type_name(dtype)}"
        limit = None
        largest = self.weights.largest(value)
        if dtype == self.options.low and largest > self.options.limit:
            limit = self.options.limit
            self.report.masks.append(Change(str(value.name), -largest, -limit))
        tensor = typed_tensor(value.const_value, dtype, limit, name)
        result = ir.Value(
            name=name, type=ir.TensorType(dtype), shape=value.shape, const_value=tensor
        )
        assert isinstance(value.graph, ir.Graph)
        value.graph.initializers[name] = result
        return result

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = f"{value.name}/{type_name(dtype)}"
        result = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
        source = value
        nodes = []
        if value in self.hidden and dtype == self.options.low:
            source = ir.Value(
                name=f"{value.name}/bounded",
                type=ir.TensorType(value.dtype or FLOAT),
                shape=value.shape,
            )
            lowest = self._lowest(value.dtype or FLOAT)
            nodes.append(
                ir.Node("", "Max", [value, lowest], name=f"{source.name}/Max", outputs=[source])
            )
        cast = [ir.AttrInt64("to", dtype)]
        nodes.append(ir.Node("", "Cast", [source], cast, name=f"{name}/Cast", outputs=[result]))
        producer = value.producer()
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, nodes)
        else:
            graph = value.graph
            assert isinstance(graph, ir.Graph)
            first = next(iter(graph), None)
            if first is None:
                graph.extend(nodes)
            else:
                graph.insert_before(first, nodes)
        self.report.casts += 1
        return result

    def _lowest(self, dtype: ir.DataType) -> ir.Value:
        graph, name = self.model.graph, f"lowest_of/{type_name(self.options.low)}"
        if name not in graph.initializers:
            tensor = ir.tensor(np.array(-self.options.limit, dtype=np.float32), name=name)
            graph.initializers[name] = ir.Value(
                name=name, type=ir.TensorType(FLOAT), shape=ir.Shape([]), const_value=tensor
            )
        return self._as_type(graph.initializers[name], dtype)

    def _rename_constants(self) -> None:
        """Drop constants that only had their 16-bit form left; that form takes the name."""
        for (value, _), result in self._made.items():
            graph = value.graph
            if is_constant(value) and not value.uses() and isinstance(graph, ir.Graph):
                name = str(value.name)
                if graph.initializers.get(name) is not value or value.is_graph_output():
                    continue
                del graph.initializers[name]
                del graph.initializers[str(result.name)]
                result.name = name
                assert result.const_value is not None
                result.const_value.name = name
                graph.initializers[name] = result
