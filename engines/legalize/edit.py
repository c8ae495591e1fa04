"""Insert nodes in front of a node, named after it: `layers.0.self_attn/Attention/Concat`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

Attribute = int | float | Sequence[int]


@dataclass(slots=True)
class Inserter:
    """Builds nodes before `node`; new names start with the node's own and are new to the graph."""

    node: ir.Node
    taken: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = {str(name) for node in self._graph for name in (node.name, *_outputs(node))}

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        dtype: ir.DataType | None,
        shape: ir.Shape | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Insert one node of the standard domain with one output; returns that value, typed."""
        name = self._name(op_type)
        made = ir.node(op_type, list(inputs), attributes=attributes, name=name)
        (output,) = made.outputs
        output.name, output.shape = name, shape
        output.type = None if dtype is None else ir.TensorType(dtype)
        self._graph.insert_before(self.node, [made])
        return output

    def constant(self, value: object, dtype: ir.DataType) -> ir.Value:
        """A small Constant node: `value` is a number or nested list."""
        array = np.asarray(value).astype(dtype.numpy())
        name = self._name("Constant")
        made = ir.node("Constant", [], attributes={"value": ir.tensor(array, name=name)}, name=name)
        (output,) = made.outputs
        output.name, output.shape, output.type = name, ir.Shape(array.shape), ir.TensorType(dtype)
        self._graph.insert_before(self.node, [made])
        return output

    @property
    def _graph(self) -> ir.Graph:
        graph = self.node.graph
        assert isinstance(graph, ir.Graph)
        return graph

    def _name(self, op_type: str) -> str:
        base = f"{self.node.name or self.node.op_type}/{op_type}"
        name, index = base, 0
        while name in self.taken:
            index += 1
            name = f"{base}_{index}"
        self.taken.add(name)
        return name


def _outputs(node: ir.Node) -> list[str | None]:
    return [output.name for output in node.outputs]


def replace_output(value: ir.Value, new: ir.Value) -> None:
    """Let every reader of `value`, the graph's output list included, read `new` under the same name."""
    name = value.name
    value.name = f"{name}/replaced"
    ir.convenience.replace_all_uses_with(value, new, replace_graph_outputs=True)
    new.name = name
    new.shape, new.type = value.shape or new.shape, value.type or new.type
