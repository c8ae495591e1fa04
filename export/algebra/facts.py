"""Everything the fusions ask of a graph, found in one pass: sizes, types, contents, consumers and keys.

Two values with one key are equal whatever they were computed from: float casts, identities, reshapes to the
same sizes and the order of an addition or product do not change a key (see keys.py).
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from . import keys
from .content import Content, boxed, cast, fold, from_dims, from_tensor, rounded
from .shapes import dims_of, dtype_of
from .symbols import Dims, Sym, named, product

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
TRANSPARENT = {"Identity", "Cast", "CastLike", "Dropout"}
_AXES_INPUT = {"Squeeze", "Unsqueeze", "Slice"}


class Facts:
    """What is known of one graph (subgraphs are graphs of their own)."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._dims: dict[ir.Value, Dims | None] = {}
        self._content: dict[ir.Value, Content | None] = {}
        self._dtype: dict[ir.Value, ir.DataType | None] = {}
        self._scalar: dict[ir.Value, float | None] = {}
        self._constant: dict[ir.Value, bool] = {}
        self.numbering = keys.Numbering(self)
        self.order: dict[ir.Node, int] = {}
        self.outputs = set(graph.outputs)
        self.nodes: list[ir.Node] = list(graph)
        for position, node in enumerate(self.nodes):
            self.order[node] = position
            self._visit(node)

    def _visit(self, node: ir.Node) -> None:
        dims = [self.dims(v) for v in node.inputs]
        contents = [self.content(v) for v in node.inputs]
        types = [self.dtype(v) for v in node.inputs]
        if (
            node.op_type == "Constant"
            and node.domain == ""
            and (tensor := constant_tensor(node)) is not None
        ):
            self._dtype[node.outputs[0]] = tensor.dtype
            self._dims[node.outputs[0]] = tuple(d for d in tensor.shape if isinstance(d, int))
            self._content[node.outputs[0]] = from_tensor(tensor)
            return
        axes = self.axes(node)
        for index, value in enumerate(node.outputs):
            self._dtype[value] = value.dtype or (
                dtype_of(node, index, types) if node.domain == "" else None
            )
            self._dims[value] = _merge(
                self._infer(node, index, dims, contents, axes), _declared(value)
            )
        if len(node.outputs) == 1 and node.domain == "":
            content = self._fold(node, contents, axes)
            self._content[node.outputs[0]] = content
            if content is not None:
                self._dims[node.outputs[0]] = content.shape

    @staticmethod
    def _infer(
        node: ir.Node,
        index: int,
        dims: list[Dims | None],
        contents: list[Content | None],
        axes: list[int] | None,
    ) -> Dims | None:
        if node.domain:
            return None
        try:
            return dims_of(node, index, dims, contents, axes)
        except (
            IndexError,
            ValueError,
            TypeError,
        ):  # a node that breaks its operator's rules has no known sizes
            return None

    def _fold(
        self, node: ir.Node, contents: list[Content | None], axes: list[int] | None
    ) -> Content | None:
        value = node.outputs[0]
        if node.op_type == "Shape":
            dims = self.dims(node.inputs[0])
            if dims is None:
                return None
            start, end = (
                node.attributes.get_int("start", 0),
                node.attributes.get_int("end", len(dims)),
            )
            return from_dims(dims[start:end])
        if node.op_type == "Size":
            dims = self.dims(node.inputs[0])
            return boxed((), [product(dims)]) if dims is not None else None
        if node.op_type == "CastLike":
            kind = self.dtype(value)
            return cast(contents[0], kind) if contents[0] is not None and kind is not None else None
        content = fold(node, contents, axes)
        if content is not None and self.dtype(value) in FLOATS:
            flat = [
                rounded(x, self.dtype(value)) if isinstance(x, float) else x
                for x in content.reshape(-1)
            ]
            rebuilt = np.empty(len(flat), dtype=object)
            rebuilt[:] = flat
            content = rebuilt.reshape(content.shape)
        return content

    def axes(self, node: ir.Node) -> list[int] | None:
        """The node's axes, counted from the front; None where it has none or they are not constant."""
        if "axes" in node.attributes:
            found: Iterable[object] = node.attributes["axes"].as_ints()
        else:
            at = {"Slice": 3, "Squeeze": 1, "Unsqueeze": 1}.get(
                node.op_type, 1 if node.op_type.startswith("Reduce") else None
            )
            if at is None or len(node.inputs) <= at or node.inputs[at] is None:
                return None
            content = self.content(node.inputs[at])
            if content is None:
                return None
            found = content.reshape(-1).tolist()
        axes = [a for a in found if isinstance(a, int)]
        dims = self.dims(node.inputs[0])
        if node.op_type == "Unsqueeze" or dims is None or not dims:
            return axes
        return [a % len(dims) for a in axes]

    def dims(self, value: ir.Value | None) -> Dims | None:
        """The sizes of a value; None where the rank is not known."""
        if value is None:
            return None
        if value not in self._dims:
            self._dims[value] = _declared(value)
        return self._dims[value]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type of a value."""
        if value is None:
            return None
        if value not in self._dtype:
            constant = value.const_value
            self._dtype[value] = value.dtype or (constant.dtype if constant is not None else None)
        return self._dtype[value]

    def content(self, value: ir.Value | None) -> Content | None:
        """The elements of a small constant or of a shape; None where they are not known."""
        if value is None:
            return None
        if value not in self._content:
            tensor = None if value.is_graph_input() else value.const_value
            self._content[value] = from_tensor(tensor) if tensor is not None else None
        return self._content[value]

    def scalar(self, value: ir.Value | None) -> float | None:
        """The one number that every element of a constant value is; None where there is none.

        A tensor with more than one element (a vector of equal numbers) has no scalar.
        """
        if value is None:
            return None
        if value not in self._scalar:
            content = self.content(value)
            number = content.reshape(-1)[0] if content is not None and content.size == 1 else None
            self._scalar[value] = (
                float(number) if isinstance(number, int | float | np.generic) else None
            )
        return self._scalar[value]

    def array(self, value: ir.Value) -> np.ndarray | None:
        """A constant's elements in float64 or int64, whatever its size."""
        producer = value.producer()
        tensor = None if value.is_graph_input() else value.const_value
        if tensor is None and producer is not None and producer.op_type == "Constant":
            tensor = constant_tensor(producer)
        if tensor is None:
            content = self.content(value)
            if content is None or any(isinstance(x, Sym) for x in content.reshape(-1)):
                return None
            return content.astype(np.float64)
        array = np.asarray(tensor.numpy())
        return array if array.dtype.kind in "fiub" else array.astype(np.float64)

    def constant(self, value: ir.Value | None) -> bool:
        """Whether a value depends on no input of the graph."""
        if value is None:
            return True
        if value not in self._constant:
            producer = value.producer()
            if producer is None:
                self._constant[value] = value.is_initializer() and not value.is_graph_input()
            else:
                self._constant[value] = False  # a cycle is not constant
                known = [self.constant(v) for v in producer.inputs]
                self._constant[value] = (
                    all(known)
                    and not any(
                        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
                        for a in producer.attributes.values()
                    )
                    and not producer.op_type.startswith("Random")
                )
        return self._constant[value]

    def key(self, value: ir.Value) -> int:
        """The number that equal values share."""
        return self.numbering.key(value)

    def users(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that read a value, once each."""
        return list(dict.fromkeys(use.node for use in value.uses()))

    def peel(self, value: ir.Value) -> ir.Value:
        """The value below float casts and identities."""
        while True:
            producer = value.producer()
            if producer is None or producer.op_type not in TRANSPARENT or producer.domain:
                return value
            below = producer.inputs[0]
            if below is None or producer.outputs[0] is not value:
                return value
            if (
                producer.op_type in ("Cast", "CastLike")
                and not {self.dtype(value), self.dtype(below)} <= FLOATS
            ):
                return value
            value = below


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node, in any of its attribute forms."""
    attributes = node.attributes
    if "value" in attributes:
        return attributes["value"].as_tensor()
    for name, dtype in (
        ("value_float", "float32"),
        ("value_int", "int64"),
        ("value_floats", "float32"),
        ("value_ints", "int64"),
    ):
        if name in attributes:
            return ir.tensor(np.array(attributes[name].value, dtype=dtype))
    return None


def _declared(value: ir.Value) -> Dims | None:
    shape: ir.ShapeProtocol | None = value.shape
    if shape is None and value.const_value is not None:
        shape = value.const_value.shape
    if shape is None:
        return None
    return tuple(
        d if isinstance(d, int) else named(d.value if d.value else f"{value.name}@{i}")
        for i, d in enumerate(shape)
    )


def _merge(inferred: Dims | None, declared: Dims | None) -> Dims | None:
    """What we inferred, except where it says less than the file."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred if inferred is not None else declared
    return tuple(
        d if isinstance(d, int) or (isinstance(i, Sym) and "?" in str(i)) else i
        for i, d in zip(inferred, declared, strict=True)
    )
