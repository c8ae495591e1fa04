"""RotaryEmbedding with cos and sin of batch 1 -> the same, expanded to the batch of its input.

    cos [1, S, D/2] -> Expand(cos, [B, 1, 1])

The opset-23 exporter writes batch 1; ONNX and TensorRT want the input's batch.
"""

import onnx_ir as ir

from .edit import Inserter

INT64 = ir.DataType.INT64


def expand_rotary_caches(model: ir.Model) -> list[str]:
    """Expand the caches of every RotaryEmbedding of `model` that have batch 1, in place."""
    changed = []
    for node in list(model.graph.all_nodes()):
        if node.op_type != "RotaryEmbedding" or node.domain or len(node.inputs) < 3:
            continue
        x, *caches = node.inputs[:3]
        if x is None or not all(_has_batch_1(c) for c in caches) or _static_batch(x) == 1:
            continue
        at = Inserter(node)
        batch = at.op("Shape", [x], dtype=INT64, start=0, end=1)
        ones = at.constant([1, 1], INT64)
        target = at.op("Concat", [batch, ones], dtype=INT64, axis=0)
        for index, cache in enumerate(caches, start=1):
            assert cache is not None and cache.shape is not None
            shape = ir.Shape([x.shape[0] if x.shape else None, *cache.shape[1:]])
            node.replace_input_with(
                index, at.op("Expand", [cache, target], dtype=cache.dtype, shape=shape)
            )
        changed.append(f"{node.name}: cos and sin expanded to the batch")
    return changed


def _has_batch_1(cache: ir.Value | None) -> bool:
    return (
        cache is not None
        and cache.shape is not None
        and len(cache.shape) == 3
        and cache.shape[0] == 1
    )


def _static_batch(value: ir.Value) -> int | None:
    size = value.shape[0] if value.shape else None
    return size if isinstance(size, int) else None
