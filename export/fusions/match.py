"""What a recogniser says: this is the operator, or why it is not; and how a match becomes nodes.

A match has the values it computes (`outputs`), the values it reads (`inputs`, in the operator's order) and, where
one exists, a standard operator for it. Without one, the nodes between the two are moved into a function.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.symbols import Dims, Sym


@dataclass(frozen=True, slots=True)
class Refusal:
    """A near match that was left alone: the pattern, the reason, and the node that stood in the way."""

    pattern: str
    reason: str
    node: str

    def __str__(self) -> str:
        return f"{self.pattern} at {self.node}: {self.reason}"


@dataclass(slots=True)
class Done:
    """What earlier matches of a graph, which stand before this one, have made."""

    shared: dict[Hashable, ir.Value] = field(default_factory=dict)  # values that several may read
    replaced: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def now(self, value: ir.Value) -> ir.Value:
        """The value that took the place of `value`, itself where none did."""
        return self.replaced.get(value, value)


class Tape:
    """New nodes in the order they run, to be put before the matched root."""

    def __init__(self, facts: Facts, done: "Done | None" = None) -> None:
        self.facts = facts
        self.done = done or Done()
        self.shared = self.done.shared
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None,
        dims: Dims | None,
        **attributes: object,
    ) -> ir.Value:
        """Add a node with one output of this type and these sizes; returns the output."""
        output = ir.Value(
            type=ir.TensorType(dtype) if dtype is not None else None, shape=shape_from(dims)
        )
        kept = {k: v for k, v in attributes.items() if v is not None}
        read = [None if v is None else self.done.now(v) for v in inputs]
        self.nodes.append(ir.node(op_type, read, attributes=kept, outputs=[output]))  # type: ignore[arg-type]
        return output

    def constant(self, array: np.ndarray, dtype: ir.DataType | None = None) -> ir.Value:
        """Add a constant as an initializer."""
        tensor = (
            ir.tensor(array)
            if dtype is None
            else ir.tensor(array.astype(dtype.numpy()), dtype=dtype)
        )
        value = ir.Value(
            type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self.initializers.append(value)
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.array(numbers, dtype=np.int64))


Build = Callable[[Tape], ir.Value]


@dataclass(frozen=True, slots=True)
class Standard:
    """A standard operator for a match: the opset that has it and how its node is written."""

    op_type: str
    since: int
    build: Build
    until: int | None = None  # the last opset at which ONNX Runtime runs it


@dataclass(slots=True)
class Match:
    """One recognised operator."""

    pattern: str  # rms, ln, glu, rope, attn, act
    name: str  # of the blockforge operator
    outputs: list[ir.Value]
    inputs: list[ir.Value]
    region: list[ir.Node]
    standard: Standard | None = None
    notes: list[str] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)

    @property
    def root(self) -> ir.Node:
        """The node whose output the match replaces."""
        node = self.outputs[0].producer()
        assert node is not None
        return node


def shape_from(dims: Dims | None) -> ir.Shape | None:
    """An ir.Shape whose computed sizes are left open."""
    if dims is None:
        return None
    return ir.Shape([d if isinstance(d, int) else _axis_name(d) for d in dims])


def _axis_name(dim: Sym) -> str | None:
    plain = len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1
    name = dim.terms[0][0][0]
    return name if plain and name.isidentifier() else None


def node_name(node: ir.Node | None) -> str:
    """A name for messages: the node's own, or its operator and first output."""
    if node is None:
        return "a graph input"
    return node.name or f"{node.op_type}({node.outputs[0].name})"


def region(
    facts: Facts, outputs: Iterable[ir.Value], leaves: Iterable[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]] | ir.Value:
    """The nodes between `leaves` and `outputs`, in no order, and the sizes (integers) that they read besides.

    A value that neither leaves, sizes nor constants explain is returned alone: the outputs depend on more.
    """
    stops, seen, sizes = set(leaves), dict[ir.Node, None](), dict[ir.Value, None]()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None or len(seen) > 4096:
            if value.is_initializer() and not value.is_graph_input():
                continue
            return value
        if node in seen:
            continue
        seen[node] = None
        for v in node.inputs:
            if v is None or v in stops:
                continue
            if facts.dtype(v) == ir.DataType.INT64 and not facts.constant(v):
                sizes[v] = None
            else:
                stack.append(v)
    return list(seen), list(sizes)


def escaping(facts: Facts, nodes: Sequence[ir.Node], outputs: Iterable[ir.Value]) -> list[ir.Value]:
    """Values made inside `nodes` that something outside reads, the outputs and constants aside."""
    inside, allowed = set(nodes), set(outputs)
    return [
        value
        for node in nodes
        for value in node.outputs
        if value not in allowed
        and not facts.constant(value)
        and (
            value in facts.outputs
            or any(
                user not in inside and not _sizes_only(facts, user) for user in facts.users(value)
            )
        )
    ]


def _sizes_only(facts: Facts, node: ir.Node) -> bool:
    """Whether a node reads no number of its input: a Shape, or a Slice that only Shapes read."""
    if node.op_type != "Slice":
        return node.op_type == "Shape"
    value = node.outputs[0]
    return value not in facts.outputs and all(u.op_type == "Shape" for u in facts.users(value))
