"""Replace every call of a local function by its body, under names that start with the call's.

    layers.0.mlp/SwiGLU -> layers.0.mlp/SwiGLU/Swish, layers.0.mlp/SwiGLU/Mul

TensorRT inlines functions itself, but keeps the inner nodes' names: two calls collide, and a kernel can no longer be
traced to its module.
"""

from collections import Counter

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ...core.errors import BuildError

CALL = "blockforge.call"  # metadata that the inliner copies from the call to the nodes of the body


def inline_functions(model: ir.Model) -> list[str]:
    """Inline all local functions of `model` in place; BuildError when one cannot be (ONNX: function bodies)."""
    calls = [n for n in model.graph.all_nodes() if n.op_identifier() in model.functions]
    counts = Counter(f"{n.domain}::{n.op_type}" for n in calls)
    kept = {output.name for n in model.graph.all_nodes() for output in n.outputs}
    for index, node in enumerate(calls):
        node.metadata_props[CALL] = node.name or f"{node.op_type}_{index}"
    try:
        InlinePass()(model)
    except Exception as error:  # the pass wraps its reasons in classes of its own
        raise BuildError(
            "inline local functions",
            found=" ".join(str(error.__cause__ or error).split()),
            fix="Function bodies must use the graph's opset and must not call themselves",
        ) from error
    model.functions.clear()
    _rename(model.graph, kept)
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in set(model.opset_imports) - used - {""}:
        del model.opset_imports[domain]
    return [f"inlined {name} ({n}x)" for name, n in sorted(counts.items())]


def _rename(graph: ir.Graph, kept: set[str | None]) -> None:
    """Name inlined nodes and their inner values after the call they came from."""
    seen: Counter[str] = Counter()
    for node in graph.all_nodes():
        call = node.metadata_props.pop(CALL, None)
        if call is None:
            continue
        name = f"{call}/{node.op_type}"
        index, seen[name] = seen[name], seen[name] + 1
        node.name = f"{name}_{index}" if index else name
        for position, output in enumerate(node.outputs):
            if output.name not in kept:
                output.name = node.name + (f".{position}" if position else "")
