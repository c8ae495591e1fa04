"""RMSNormalization of a centred tensor is LayerNormalization: RMSNormalization(x - mean(x)) -> LayerNormalization(x)."""

from collections.abc import Iterator

import onnx_ir as ir

from ..algebra.facts import Facts
from .match import Match, Refusal, Standard, Tape, escaping, node_name, region
from .statistics import is_mean


def find_centred(facts: Facts) -> Iterator[Match | Refusal]:
    """Every RMSNormalization whose input is a tensor minus its own mean over the same axes."""
    for node in facts.nodes:
        if node.domain or node.op_type not in ("RMSNormalization", "SimplifiedLayerNormalization"):
            continue
        centred, scale = node.inputs[0], node.inputs[1]
        dims = facts.dims(centred)
        if centred is None or scale is None or dims is None:
            continue
        difference = facts.peel(centred).producer()
        if difference is None or difference.op_type != "Sub" or difference.domain:
            continue
        x, mean = difference.inputs[0], difference.inputs[1]
        axis = node.attributes.get_int("axis", -1) % len(dims)
        axes = tuple(range(axis, len(dims)))
        if x is None or mean is None or not is_mean(facts, mean, x, axes):
            continue
        yield _match(facts, node, x, scale, axis - len(dims))


def _match(facts: Facts, node: ir.Node, x: ir.Value, scale: ir.Value, axis: int) -> Match | Refusal:
    output = node.outputs[0]
    dtype, dims = facts.dtype(scale), facts.dims(output)
    span = region(facts, [output], [x, scale])
    if isinstance(span, ir.Value):
        return Refusal("ln", f"it also depends on {span.name}", node_name(node))
    nodes, sizes = span
    escaped = escaping(facts, nodes, [output])
    if escaped:
        return Refusal(
            "ln", f"the inner value {escaped[0].name} is used elsewhere", node_name(node)
        )
    standard = None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if facts.dtype(x) == dtype == facts.dtype(output) and facts.dims(scale) == (dims or ())[axis:]:

        def build(tape: Tape) -> ir.Value:
            return tape.op(
                "LayerNormalization",
                [x, scale],
                dtype,
                dims,
                axis=axis,
                epsilon=epsilon,
                stash_type=1,
            )

        standard = Standard("LayerNormalization", 17, build)
    return Match(
        "ln",
        "LayerNorm",
        [output],
        [x, scale, *sizes],
        nodes,
        standard,
        details={"epsilon": epsilon},
    )
