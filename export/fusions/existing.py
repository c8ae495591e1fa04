"""Operators that a graph already has as one node."""

from collections.abc import Iterator

import onnx_ir as ir

from ...core.domain import DOMAIN
from .report import PATTERNS

STANDARD = {
    "RMSNormalization": "rms",
    "SimplifiedLayerNormalization": "rms",
    "LayerNormalization": "ln",
    "RotaryEmbedding": "rope",
    "Attention": "attn",
    "SwiGLU": "glu",
    "Swish": "act",
    "Gelu": "act",
}
CONTRIB = {
    "SkipSimplifiedLayerNormalization": "rms",
    "SimplifiedLayerNormalization": "rms",
    "SkipLayerNormalization": "ln",
    "EmbedLayerNormalization": "ln",
    "RotaryEmbedding": "rope",
    "MultiHeadAttention": "attn",
    "GroupQueryAttention": "attn",
    "Attention": "attn",
    "Gelu": "act",
    "FastGelu": "act",
    "QuickGelu": "act",
    "BiasGelu": "act",
    "BiasGeluFusion": "act",
}
OURS = {
    "RMSNorm": "rms",
    "AddRMSNorm": "rms",
    "LayerNorm": "ln",
    "AddLayerNorm": "ln",
    "SwiGLU": "glu",
    "GeGLU": "glu",
    "ReGLU": "glu",
    "GLU": "glu",
    "QuickGeGLU": "glu",
    "SwishGLU": "glu",
    "Rotary": "rope",
    "Attention": "attn",
    "Gelu": "act",
    "SiLU": "act",
    "QuickGelu": "act",
    "Swish": "act",
}
TABLES = {"": STANDARD, "com.microsoft": CONTRIB, DOMAIN: OURS}


def existing(graph: ir.Graph) -> Iterator[tuple[str, ir.Node]]:
    """(pattern, node) of every operator that needs no fusing."""
    for node in graph:
        table = TABLES.get(node.domain, {})
        pattern = table.get(node.op_type)
        if pattern is None and node.domain == DOMAIN:
            pattern = next((p for name, p in table.items() if node.op_type.startswith(name)), None)
        if pattern is not None:
            yield pattern, node


def count(model: ir.Model) -> dict[str, int]:
    """The operators of a model per pattern; an activation inside a gate counts as one of its own."""
    counts = dict.fromkeys(PATTERNS, 0)
    for graph in model.graphs():
        for pattern, _ in existing(graph):
            counts[pattern] += 1
    counts["act"] += counts["glu"]
    return counts
