"""Operators that a graph already has as one node."""

from collections.abc import Iterator

import onnx_ir as ir

from ...core.domain import DOMAIN
from ..algebra.facts import Facts

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


def existing(facts: Facts) -> Iterator[tuple[str, ir.Node]]:
    """(pattern, node) of every operator that needs no fusing."""
    for node in facts.nodes:
        table = TABLES.get(node.domain)
        if table is None:
            continue
        pattern = table.get(node.op_type)
        if pattern is None and node.domain == DOMAIN:
            pattern = next((p for name, p in table.items() if node.op_type.startswith(name)), None)
        if pattern is not None:
            yield pattern, node
