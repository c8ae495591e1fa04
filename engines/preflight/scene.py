"""A graph as the rules look at it: nodes by operator, small constants, where a value comes from."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...graph.rules import domain_of, nodes_of
from ..target import Target

SMALL = 1 << 16  # bytes of a constant that a rule may read: scales, masks, sizes; no weight
STEPS = 4096  # values that a walk towards a value's origins may pass
MOVES = frozenset(
    {"Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Transpose", "Slice", "Concat", "Where", "Tile", "Gather"}
)  # operators whose output holds only numbers of their inputs  # fmt: skip


@dataclass(slots=True)
class Scene:
    """`model` on `target`. nodes: every node of the graph and its subgraphs, functions excluded."""

    model: ir.Model
    target: Target
    nodes: tuple[ir.Node, ...] = field(init=False)
    _by_operator: dict[tuple[str, str], list[ir.Node]] = field(init=False)
    _inner: set[ir.Node] = field(init=False)
    _holders: dict[ir.DataType, str] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.nodes = tuple(nodes_of(self.model.graph))
        self._by_operator = defaultdict(list)
        for node in self.nodes:
            self._by_operator[domain_of(node), node.op_type].append(node)
        self._inner = {n for n in self.nodes if n.graph is not self.model.graph}

    def of(self, *operators: str, domain: str = "") -> Iterator[ir.Node]:
        """The nodes of these operators."""
        for operator in operators:
            yield from self._by_operator.get((domain, operator), ())

    def is_inner(self, node: ir.Node) -> bool:
        """Whether the node stands in a branch or a loop's body."""
        return node in self._inner

    @property
    def holders(self) -> dict[ir.DataType, str]:
        """Each element type that the graph holds or makes -> the first input, weight or node with it."""
        if self._holders is None:
            self._holders = {}
            for dtype, where in self._held():
                self._holders.setdefault(dtype, where)
        return self._holders

    def _held(self) -> Iterator[tuple[ir.DataType, str]]:
        graph = self.model.graph
        for value in (*graph.inputs, *graph.initializers.values()):
            constant = value.const_value
            dtype = value.dtype or (None if constant is None else constant.dtype)
            if dtype is not None and (value.is_graph_input() or value.uses()):
                yield dtype, str(value.name)
        seen: set[ir.DataType] = set()
        for node in self.nodes:
            made = {node.outputs[0].dtype} if node.outputs else set()
            if node.attributes:
                made.add(
                    _named(integer(node, "to" if node.op_type == "Cast" else "output_dtype", 0))
                )
            if node.op_type == "QuantizeLinear" and (zero := input_of(node, 2)) is not None:
                made.add(zero.dtype)
            for dtype in made - seen - {None}:
                assert dtype is not None
                seen.add(dtype)
                yield dtype, label(node)

    @property
    def architecture(self) -> int:
        """sm89 -> 89; 0 where the device is none of NVIDIA's."""
        digits = self.target.device.removeprefix("sm")
        return int(digits) if digits.isdigit() else 0

    def origins(self, value: ir.Value) -> Iterator[ir.Value]:
        """The values whose numbers reach `value` through operators that only move numbers; itself where it is computed."""
        stack, seen = [value], {value}
        while stack and len(seen) < STEPS:
            here = stack.pop()
            node = here.producer()
            if node is None or domain_of(node) or node.op_type not in MOVES:
                yield here
                continue
            given = node.inputs[1:] if node.op_type == "Where" else node.inputs
            moved = given if node.op_type in ("Where", "Concat") else given[:1]
            for source in moved:
                if source is not None and source not in seen:
                    seen.add(source)
                    stack.append(source)


def _named(number: int) -> ir.DataType | None:
    return ir.DataType(number) if number and number in {int(d) for d in ir.DataType} else None


def label(node: ir.Node) -> str:
    """The node's name, or what it computes where it has none."""
    first = next((o.name for o in node.outputs if o.name), "nothing")
    return node.name or f"{node.op_type} -> {first}"


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor behind a weight or a Constant node; None for anything computed."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or domain_of(node):
        return None
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return attribute.as_tensor()
        if name in ("value_float", "value_floats"):
            return ir.tensor(np.asarray(attribute.value, np.float32))
        if name in ("value_int", "value_ints"):
            return ir.tensor(np.asarray(attribute.value, np.int64))
    return None


def constant(value: ir.Value | None, limit: int = SMALL) -> np.ndarray | None:
    """The numbers of a constant of at most `limit` bytes, floats as fp64; None for anything else."""
    tensor = tensor_of(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes > limit:
        return None
    array = np.asarray(tensor.numpy())
    return array.astype(np.float64) if tensor.dtype.is_floating_point() else array


def sizes(value: ir.Value | None) -> list[int | None] | None:
    """The axes of a value: sizes, None where dynamic; None without a declared rank."""
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else None for d in value.shape]


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute; the default where it is absent, a reference or of another type."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.INT:
        return default
    return attribute.as_int()


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None where absent."""
    return node.inputs[index] if index < len(node.inputs) else None
