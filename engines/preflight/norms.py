"""Forms of LayerNormalization, RotaryEmbedding and TensorScatter that TensorRT refuses. Measured on TensorRT-RTX 1.7.1."""

from collections.abc import Iterator

import onnx_ir as ir

from ...graph.type_names import type_name
from .row import Check, Row, Spot
from .scene import Scene, input_of, label, sizes


def _statistics(read: bool) -> Check:
    def check(scene: Scene) -> Iterator[Spot]:
        for node in scene.of("LayerNormalization"):
            more = node.outputs[1:]
            used = [o for o in more if o.uses() or o.is_graph_output()]
            if more and bool(used) == read:
                what = f"{used[0].name!r} is read" if used else "nothing reads the second"
                yield Spot(label(node), f"{len(node.outputs)} outputs, {what}")

    return check


def _rotary_batch(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("RotaryEmbedding"):
        x, cos = sizes(input_of(node, 0)), sizes(input_of(node, 1))
        if x and cos and len(cos) == 3 and cos[0] == 1 and x[0] != 1:
            yield Spot(label(node), f"cos and sin have batch 1, the input has {x[0] or 'any'}")


def _rotary_heads(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("RotaryEmbedding"):
        x = sizes(input_of(node, 0))
        if x is not None and len(x) == 3 and "num_heads" not in node.attributes:
            yield Spot(label(node), "a 3-D input without num_heads")


def _scatter_mode(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("TensorScatter"):
        mode = node.attributes.get("mode")
        if mode is not None and not mode.is_ref() and mode.as_string() != "linear":
            yield Spot(label(node), f"mode {mode.as_string()!r}")


def _scatter_rank(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("TensorScatter"):
        cache = sizes(input_of(node, 0))
        if cache is not None and len(cache) != 4:
            yield Spot(label(node), f"a cache of rank {len(cache)}")


UPDATED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def _scatter_type(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("TensorScatter"):
        cache = input_of(node, 0)
        if cache is not None and cache.dtype is not None and cache.dtype not in UPDATED:
            yield Spot(label(node), f"a cache of {type_name(cache.dtype)}")


def _scatter_input(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("TensorScatter"):
        cache = input_of(node, 0)
        if cache is not None and (made := cache.producer()) is not None:
            yield Spot(label(node), f"{label(made)} ({made.op_type}) computes its cache")


ROWS = (
    Row("layernorm.outputs", "LayerNormalization", "it has further outputs that nothing reads",
        "The parser refuses the node", "Drop them", _statistics(read=False), legalized=True),
    Row("layernorm.statistics", "LayerNormalization", "its mean or deviation is read", "The parser refuses the node",
        "Compute them with ReduceMean", _statistics(read=True)),
    Row("rotary.batch", "RotaryEmbedding", "cos and sin have batch 1 and the input has another",
        "The parser refuses the node", "Expand cos and sin to the batch, or give position_ids", _rotary_batch,
        legalized=True),
    Row("rotary.heads", "RotaryEmbedding", "a 3-D input without num_heads", "The parser refuses the node",
        "Set num_heads", _rotary_heads),
    Row("tensorscatter.mode", "TensorScatter", "mode is not linear", "The parser refuses the node",
        "Use a linear cache", _scatter_mode),
    Row("tensorscatter.rank", "TensorScatter", "the cache is not 4-D", "The parser refuses the node",
        "Reshape the cache to [batch, heads, length, head size]", _scatter_rank),
    Row("tensorscatter.type", "TensorScatter", "the cache is neither fp32, fp16 nor bf16",
        "The parser refuses the node: 'cache has type FP8 but must have type Float, Half, or BFloat16'",
        "Dequantise the cache before and quantise it behind the node, as `blockforge quantize --kv-cache` writes it",
        _scatter_type),
    Row("tensorscatter.input", "TensorScatter", "a node computes the cache",
        "The build fails: 'The cache tensor must be a network input'", "Make the cache a graph input", _scatter_input,
        legalized=True),
)  # fmt: skip
