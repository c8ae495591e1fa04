"""Attributes and operators: the region with one of them changed gives the reference's value."""

from collections.abc import Iterator

import onnx_ir as ir

from .case import Case, Cause, Edit

KINDS = {
    "epsilon": "epsilon",
    "scale": "scale",
    "is_causal": "mask",
    "left_window_size": "mask",
    "right_window_size": "mask",
    "softcap": "softcap",
    "interleaved": "rope layout",
    "rotary_embedding_dim": "rope layout",
    "approximate": "activation",
    "q_num_heads": "head mapping",
    "kv_num_heads": "head mapping",
    "num_heads": "head mapping",
    "perm": "channel order",
}
_EPSILONS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_CAPS = (0.0, 20.0, 30.0, 50.0)
_ACTIVATIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("Relu", {}),
    ("Gelu", {"approximate": "none"}),
    ("Gelu", {"approximate": "tanh"}),
    ("Swish", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
)
_UNARY = frozenset(name for name, _ in _ACTIVATIONS) | {"Elu", "LeakyRelu", "QuickGelu", "FastGelu"}
_GATED = {"SwiGLU": "silu", "GeGLU": "gelu"}


def attributes(case: Case) -> Iterator[Cause]:
    """One attribute of one node of the region: the other side's first, then values that are common."""
    for number, node in enumerate(case.region.nodes):
        for key, values in _candidates(case, node):
            own = _value(node.attributes.get(key))
            tried = [(case.run(set_attribute(number, key, v)), v) for v in values if v != own]
            fits = [
                (error.over, n, v)
                for n, (error, v) in enumerate(tried)
                if error and not error.diverged
            ]
            if fits:
                yield _attribute(case, node, key, own, min(fits)[2])
                return


def _attribute(case: Case, node: ir.Node, key: str, own: object, fit: object) -> Cause:
    mine, theirs = case.sides(own, fit)
    text = f"{node.op_type} has {key} {_shown(mine)}, the reference {_shown(theirs)}"
    if key == "is_causal":
        text += ": " + ("a causal mask too many" if mine else "the causal mask is missing")
    if key == "scale" and isinstance(mine, float) and isinstance(theirs, float) and theirs:
        text += f" (factor {mine / theirs:.6g})"
    if key == "interleaved":
        text += " (1: interleaved pairs, 0: halves)"
    facts = {"attribute": key, "candidate": mine, "reference": theirs}
    return Cause(KINDS.get(key, f"attribute {key}"), text, facts, node=node.name)


def activations(case: Case) -> Iterator[Cause]:
    """Another activation, alone or inside a gated product."""
    for number, node in enumerate(case.region.nodes):
        if node.op_type in _UNARY:
            for op_type, extra in _ACTIVATIONS:
                if op_type == node.op_type and op_type != "Gelu":
                    continue
                if case.repaired(_becomes(number, op_type, extra)):
                    yield _activation(case, node, op_type, extra)
                    return
        if node.op_type in _GATED and len(node.inputs) == 2:
            for op_type, extra in _ACTIVATIONS:
                if case.repaired(_gate(number, op_type, extra)):
                    yield _activation(case, node, op_type, extra)
                    return


def _activation(case: Case, node: ir.Node, op_type: str, extra: dict[str, object]) -> Cause:
    other = op_type + (f" ({extra['approximate']})" if extra else "")
    mine, theirs = case.sides(node.op_type, other)
    text = f"the activation is {mine}, the reference's values are those of {theirs}"
    return Cause("activation", text, {"candidate": mine, "reference": theirs}, node=node.name)


def _candidates(case: Case, node: ir.Node) -> Iterator[tuple[str, list[object]]]:
    """Attributes that the twin's node of the same kind has otherwise, then common values."""
    if case.twin is not None:
        same = [n for n in case.twin.nodes if n.op_type == node.op_type]
        mine = [n for n in case.region.nodes if n.op_type == node.op_type]
        if len(same) == len(mine):
            other = same[mine.index(node)]
            for key in sorted({*node.attributes, *other.attributes}):
                yield key, [_value(other.attributes.get(key))]
    if node.op_type in ("RMSNormalization", "LayerNormalization", "SimplifiedLayerNormalization"):
        yield "epsilon", list(_EPSILONS)
    elif node.op_type == "Attention":
        yield "is_causal", [0, 1]
        scale = node.attributes.get("scale")
        if scale is not None:
            s = float(scale.as_float())
            yield (
                "scale",
                [None, 1.0, s * s, s**0.5, s * 2, s / 2, s * 4, s / 4, s * 2**0.5, s / 2**0.5],
            )
        yield "softcap", list(_CAPS)
        for key in ("left_window_size", "right_window_size"):
            if key in node.attributes:
                size = node.attributes[key].as_int()
                yield key, [size - 1, size + 1, -1]
    elif node.op_type == "RotaryEmbedding":
        yield "interleaved", [0, 1]
    elif node.op_type == "Gelu":
        yield "approximate", ["none", "tanh"]


def set_attribute(number: int, key: str, value: object) -> Edit:
    """Node `number` of the region with one attribute set, or gone for None."""

    def edit(graph: ir.Graph) -> None:
        node = graph.node(number)
        if value is None:
            node.attributes.pop(key, None)
        else:
            node.attributes[key] = ir.convenience.convert_attribute(key, value)  # type: ignore[arg-type]

    return edit


def _becomes(number: int, op_type: str, extra: dict[str, object]) -> Edit:
    def edit(graph: ir.Graph) -> None:
        old = graph.node(number)
        new = _made(op_type, old.inputs[0], extra)
        put_in_place(graph, old, [new])

    return edit


def _gate(number: int, op_type: str, extra: dict[str, object]) -> Edit:
    def edit(graph: ir.Graph) -> None:
        old = graph.node(number)
        act = _made(op_type, old.inputs[0], extra)
        act.outputs[0].name = "activation/repaired"
        put_in_place(graph, old, [act, ir.Node("", "Mul", [act.outputs[0], old.inputs[1]])])

    return edit


def _made(op_type: str, x: ir.Value | None, extra: dict[str, object]) -> ir.Node:
    return ir.Node("", op_type, [x], ir.convenience.convert_attributes(extra))  # type: ignore[arg-type]


def put_in_place(graph: ir.Graph, old: ir.Node, new: list[ir.Node]) -> None:
    """The last of `new` takes over the name, type and uses of the old node's value."""
    gone, made = old.outputs[0], new[-1].outputs[0]
    made.name, made.type, made.shape = gone.name, gone.type, gone.shape
    gone.name = f"{gone.name}/gone"
    graph.insert_after(old, new)
    ir.convenience.replace_all_uses_with(gone, made, replace_graph_outputs=True)
    graph.remove(old, safe=True)


def _value(attribute: ir.Attr | None) -> object:
    return None if attribute is None else attribute.value


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
