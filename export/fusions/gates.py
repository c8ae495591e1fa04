"""Activations alone, and gates: one projection times the activation of another.

y = activation(gate) * up        SwiGLU, GeGLU (erf or tanh), ReGLU, GLU, quick-GEGLU
"""

from collections.abc import Iterator

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from .activations import QUICK, Activation, find_activations
from .match import Match, Refusal, Standard, Tape, escaping, node_name, region

GATES = {
    "silu": "SwiGLU",
    "gelu": "GeGLU",
    "gelu_tanh": "GeGLUTanh",
    "relu": "ReGLU",
    "sigmoid": "GLU",
}
ALONE = {"silu": "SiLU", "gelu": "Gelu", "gelu_tanh": "GeluTanh"}
READY = {"Swish", "Gelu"}


def find_gates(facts: Facts) -> Iterator[Match | Refusal]:
    """Every gate and lone activation, and every near match with its reason."""
    for activation in find_activations(facts):
        yield from _one(facts, activation)


def _one(facts: Facts, found: Activation) -> Iterator[Match | Refusal]:
    pair = _gate(facts, found)
    producer = found.root.producer()
    if pair is not None:
        root, up = pair
        match = _match(facts, found, root, up, GATES[found.kind], "glu")
        if isinstance(match, Match):
            yield match
            return
        yield match
    if (
        found.kind in ALONE
        and found.rest is None
        and producer is not None
        and producer.op_type not in READY
    ):
        yield _match(facts, found, found.root, None, ALONE[found.kind], "act")


def _gate(facts: Facts, found: Activation) -> tuple[ir.Value, ir.Value] | None:
    """(product, up) when the activation is multiplied by one tensor of the same sizes."""
    if found.rest is not None:
        return (found.root, found.rest) if _partner(facts, found, found.rest) else None
    value = found.root
    while (
        len(users := facts.users(value)) == 1
        and users[0].op_type in TRANSPARENT
        and not users[0].domain
    ):
        if facts.key(users[0].outputs[0]) != facts.key(value):
            break
        value = users[0].outputs[0]
    products = [n for n in facts.users(value) if n.op_type == "Mul" and n.domain == ""]
    for node in products:
        up = node.inputs[1 if node.inputs[0] is value else 0]
        if up is not None and up is not value and _partner(facts, found, up):
            return node.outputs[0], up
    return None


def _partner(facts: Facts, found: Activation, up: ir.Value) -> bool:
    """Whether `up` is a tensor of the gate's sizes, from the same projection where the activation alone says little."""
    dims = facts.dims(found.x)
    if (
        facts.constant(up)
        or dims is None
        or facts.dims(up) != dims
        or facts.key(up) == facts.key(found.x)
    ):
        return False
    if found.kind in ("silu", "gelu", "gelu_tanh"):
        return True
    a, b = _source(facts, found.x), _source(facts, up)
    return a is not None and a == b


def _source(facts: Facts, value: ir.Value) -> int | None:
    """The key of the tensor that a projection (and slices, biases, bounds after it) reads; None where there is none."""
    projected = False
    for _ in range(12):
        value = facts.peel(value)
        node = value.producer()
        if node is None or node.domain:
            break
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.inputs[0] is not None:
            return facts.key(node.inputs[0])
        data = [v for v in node.inputs if v is not None and not facts.constant(v)]
        if node.op_type in ("Add", "Min", "Max", "Clip", "Mul") and len(data) == 1:
            value = data[0]
        elif (
            node.op_type in ("Slice", "Split", "Gather", "Reshape", "Transpose", "Squeeze")
            and node.inputs[0] is not None
        ):
            value, projected = (
                node.inputs[0],
                projected or node.op_type in ("Slice", "Split", "Gather"),
            )
        else:
            break
    return facts.key(value) if projected else None


def _match(
    facts: Facts, found: Activation, root: ir.Value, up: ir.Value | None, name: str, pattern: str
) -> Match | Refusal:
    where = node_name(root.producer())
    x = found.x
    inputs = [x] if up is None else [x, up]
    dtype = facts.dtype(root)
    span = region(facts, [root], inputs)
    if isinstance(span, ir.Value):
        return Refusal(pattern, f"it also depends on {span.name}", where)
    nodes, sizes = span
    escaped = [
        v
        for v in escaping(facts, nodes, [root])
        if facts.key(v) not in {facts.key(i) for i in inputs}
    ]
    if escaped:
        place = "a graph output" if escaped[0] in facts.outputs else "used elsewhere"
        return Refusal(pattern, f"the inner value {escaped[0].name} is {place}", where)
    if found.kind == "silu" and found.alpha != 1.0:
        name = name.replace(
            "SwiGLU", "QuickGeGLU" if abs(found.alpha - QUICK) < 0.01 else "SwishGLU"
        )
        name = name.replace("SiLU", "QuickGelu" if abs(found.alpha - QUICK) < 0.01 else "Swish")
    match = Match(pattern, name, [root], inputs + sizes, nodes)
    match.details = {"activation": found.kind, "alpha": found.alpha}
    if up is None and all(
        facts.dtype(v) == dtype for n in nodes for v in n.outputs if facts.dtype(v) is not None
    ):
        if not found.approximate:
            match.standard = _standard(facts, found, dtype)
        elif dtype is not None:
            match.notes.append(
                f"its constants are rounded to {dtype.name.lower()}: kept as they are in a function"
            )
    return match


def _standard(facts: Facts, found: Activation, dtype: ir.DataType | None) -> Standard | None:
    dims = facts.dims(found.root)
    if facts.dtype(found.x) != dtype:
        return None

    def gelu(tape: Tape) -> ir.Value:
        approximate = "tanh" if found.kind == "gelu_tanh" else "none"
        return tape.op("Gelu", [found.x], dtype, dims, approximate=approximate)

    def swish(tape: Tape) -> ir.Value:
        return tape.op("Swish", [found.x], dtype, dims, alpha=found.alpha)

    if found.kind == "silu":
        return Standard("Swish", 24, swish, until=24)
    return Standard("Gelu", 20, gelu)
