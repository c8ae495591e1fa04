"""Which nodes stay in FP32 whatever their numbers are, found from what the graph computes.

    statistics   sums and means, what squares before them, and what follows until they meet the data again
    scores       softmax and exponentials, and what scales, caps and masks their input
    positions    numbers made from integers alone (angles, masks, buckets), and everything before a sine
    small        a constant beside the data that a 16-bit type cannot hold (1e-12), or a factor beyond it

Everything else (weights, matrix products, gates, residual additions) is 16 bit.
"""

from collections.abc import Iterator
from enum import Enum, auto

import numpy as np
import onnx_ir as ir

from ...graph.dtype_rules import schema_of
from ...graph.operators import OPERATORS
from ...graph.type_names import type_name
from .options import PrecisionOptions
from .prepare import FLOAT, operation

SUMS = frozenset(
    [
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceProd",
        "CumSum",
        "LpNormalization",
        "MeanVarianceNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "BatchNormalization",
    ]
)
EXPONENTIALS = frozenset({"Softmax", "LogSoftmax", "Exp", "Log", "Softplus"})
ANGLES = frozenset({"Sin", "Cos", "Tan"})
PRODUCTS = frozenset({"MatMul", "Gemm", "Attention", "Conv", "ConvTranspose", "Einsum"})
MOVES = frozenset(
    [
        "Identity",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Slice",
        "Split",
        "Concat",
        "Gather",
        "Flatten",
        "Tile",
        "Trilu",
        "Pad",
        "Where",
        "ConstantOfShape",
        "GatherND",
        "GatherElements",
    ]
)
_BEFORE_SCORES = MOVES | frozenset(
    ["Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Tanh", "Neg", "Cast", "ReduceMax"]
) - {"Gather"}
_BOUNDED_FACTOR = frozenset({"Mul", "Div"})
_SHIFTS = frozenset({"Add", "Sub", "Max", "Min", "Clip", "Pow"})
_CONTROL = frozenset({"If", "Loop", "Scan"})

Reasons = dict[ir.Node, str]


class _Kind(Enum):
    """What a float value is made from."""

    CONSTANT = auto()  # weights and constants, and what only moves them
    STATISTIC = auto()
    POSITION = auto()
    WIDE = auto()  # any other result of a wide node
    DATA = auto()


def wide_by_structure(model: ir.Model, options: PrecisionOptions) -> Reasons:
    """The nodes that read and write FP32, each with the rule that says so."""
    nodes = list(all_nodes(model.graph))
    wide = _forward(model, nodes, options)
    data = _from_data(nodes)
    for node in reversed(nodes):
        _backward(node, wide, data)
    for node in nodes:
        if _is_truth(node) and not any(r in wide for r in _readers(node)):
            wide.pop(node, None)
    return wide


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node in the order it runs, inner graphs before the node that has them."""
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from all_nodes(attribute.as_graph())
        yield node


def floats(values: object) -> list[ir.Value]:
    """The FP32 tensors among inputs or outputs."""
    assert isinstance(values, tuple | list)
    return [v for v in values if isinstance(v, ir.Value) and is_float(v)]


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is an FP32 tensor."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == FLOAT


def is_constant(value: ir.Value) -> bool:
    """Whether a value is a weight or constant that nobody can feed."""
    return value.is_initializer() and not value.is_graph_input()


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant with one element."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    if value.const_value.size != 1:
        return None
    return float(np.asarray(value.const_value.numpy()).reshape(-1)[0])


def _from_data(nodes: list[ir.Node]) -> set[ir.Value]:
    """Values that depend on a float input of the graph or on the rows of a table."""
    data: set[ir.Value] = set()
    for node in nodes:
        reads = any(v in data or (is_float(v) and v.is_graph_input()) for v in node.inputs if v)
        table = node.op_type == "Gather" and bool(floats(tuple(node.inputs)))
        if reads or table or node.op_type in _CONTROL:
            data.update(node.outputs)
    return data


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for v in node.outputs for use in v.uses()]


def _is_truth(node: ir.Node) -> bool:
    """A Cast of 0 and 1, which every type holds, that nothing but the graph reads."""
    source = node.inputs[0] if node.op_type == "Cast" else None
    inner = not any(v.is_graph_output() for v in node.outputs)
    return source is not None and source.dtype == ir.DataType.BOOL and inner


def _forward(model: ir.Model, nodes: list[ir.Node], options: PrecisionOptions) -> Reasons:
    wide: Reasons = {}
    kinds: dict[ir.Value, _Kind] = {}
    for node in nodes:
        inputs = floats(tuple(node.inputs))
        outputs = floats(tuple(node.outputs))
        if not inputs and not outputs:
            continue
        found = [_Kind.CONSTANT if is_constant(v) else kinds.get(v, _Kind.DATA) for v in inputs]
        reason, kind = _judge(node, [k for k in found if k is not _Kind.CONSTANT], options)
        reason = reason or lacks_form(node, model, options.low)
        if reason:
            wide[node] = reason
        kinds.update(dict.fromkeys(outputs, kind))
    return wide


def _judge(node: ir.Node, kinds: list[_Kind], options: PrecisionOptions) -> tuple[str, _Kind]:
    """The rule that makes the node wide ("" for none) and what its outputs are."""
    op = node.op_type if node.domain in ("", "ai.onnx") else ""
    if op in _CONTROL:
        return ("" if op == "If" else "carried by a loop"), _Kind.DATA
    if op in PRODUCTS or (op and op == "Gather" and not kinds):
        return "", _Kind.DATA
    if op in SUMS:
        return "statistics", _Kind.STATISTIC
    if op in ANGLES:
        return "positions", _Kind.POSITION
    if op in EXPONENTIALS:
        if kinds == [_Kind.POSITION]:
            return "positions", _Kind.POSITION
        return "scores", _Kind.WIDE if op.endswith("Softmax") else _Kind.STATISTIC
    if op in ("Cast", "Range") and not kinds:
        return "positions", _Kind.POSITION
    if op and _too_small_or_large(node, options):
        return "small", _Kind.STATISTIC if op in _SHIFTS else _Kind.WIDE
    if not kinds:
        return "", _Kind.CONSTANT if op in MOVES else _Kind.DATA
    if not op:
        return "", _Kind.DATA
    if _Kind.STATISTIC in kinds:
        alone = all(k is _Kind.STATISTIC for k in kinds)
        return "statistics", _Kind.STATISTIC if alone else _Kind.WIDE
    if all(k is _Kind.POSITION for k in kinds):
        return "positions", _Kind.POSITION
    if kinds == [_Kind.WIDE] and op in ("Mul", "Add", "Sub", "Div"):
        return "scale and bias of a norm", _Kind.WIDE
    return "", _Kind.DATA


def _too_small_or_large(node: ir.Node, options: PrecisionOptions) -> bool:
    """A constant that the 16-bit type flushes or loses bits of; a factor that it cannot hold."""
    if node.op_type not in _SHIFTS and node.op_type not in _BOUNDED_FACTOR:
        return False
    numbers = [abs(n) for n in map(scalar, node.inputs) if n]
    if any(n < options.smallest for n in numbers):
        return True
    return node.op_type in _BOUNDED_FACTOR and any(n > options.limit for n in numbers)


def lacks_form(node: ir.Node, model: ir.Model, low: ir.DataType) -> str:
    """Why the node cannot be 16 bit at the model's opset, "" where it can."""
    found = operation(node, model)
    if node.op_identifier() in model.functions:
        return ""
    schema = schema_of(found.name, found.domain, found.version)
    if schema is None:
        return "" if (found.domain, found.name) in OPERATORS else "an unknown operator"
    name = f"tensor({low.name.lower()})"
    shared = {o.type_str for o in schema.outputs}
    for index, value in enumerate(node.inputs):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if is_float(value) and name not in formal.types and formal.type_str in shared:
            return f"no {type_name(low)} at opset {found.version}"
    if any(isinstance(v.type, ir.SequenceType | ir.OptionalType) for v in node.outputs):
        return "a sequence"
    return ""


def takes_low(node: ir.Node, index: int, model: ir.Model, low: ir.DataType) -> bool:
    """Whether the schema allows the 16-bit type for this input."""
    found = operation(node, model)
    schema = schema_of(found.name, found.domain, found.version)
    if schema is None:
        return True
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return f"tensor({low.name.lower()})" in formal.types


def _backward(node: ir.Node, wide: Reasons, data: set[ir.Value]) -> None:
    """Called from the last node to the first: wide where all that reads the node needs it so."""
    outputs = floats(tuple(node.outputs))
    if not outputs or node in wide or node.domain not in ("", "ai.onnx"):
        return
    readers = _readers(node)
    reasons = {wide.get(reader, "") for reader in readers}
    if any(v.is_graph_output() for v in outputs) or not readers:
        reasons.add("")
    angles = any(r.op_type in ANGLES or wide.get(r) == "angles" for r in readers)
    if angles and not data.intersection(outputs):
        wide[node] = "angles"
    elif node.op_type in _squares(node) and any(r.op_type in SUMS for r in readers):
        wide[node] = "statistics"
    elif reasons <= {"scores"} and node.op_type in _BEFORE_SCORES:
        wide[node] = "scores"
    elif "" not in reasons and not floats_that_move(node) and node.op_type in MOVES:
        wide[node] = "constants of wide nodes"


def floats_that_move(node: ir.Node) -> list[ir.Value]:
    """Float inputs that are no constants."""
    return [v for v in floats(tuple(node.inputs)) if not is_constant(v)]


def _squares(node: ir.Node) -> frozenset[str]:
    """Operators that square what they read, for this node."""
    twice = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return frozenset({"Pow", "Abs", *(("Mul",) if twice else ())})
