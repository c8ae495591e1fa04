"""Store a key-value cache in FP8: codes at the graph's edge, numbers inside.

    past  (E4M3) -> DequantizeLinear -\\
                                       node -> QuantizeLinear -> present (E4M3) -> DequantizeLinear -> every reader
    update -> QuantizeLinear -> DequantizeLinear -/

One static scale for all. The node itself (TensorScatter, Concat, Attention) keeps the graph's type, as ONNX's Concat and
Attention know no FP8 and TensorRT-RTX 1.7.1 updates no FP8 cache. Quantising what was dequantised with the same scale gives
the same code back, so what the cache holds is rounded once, when it is written; a scale for which that does not hold in
the graph's type is refused.
"""

import onnx_ir as ir
import torch

from ...core.errors import UsageError
from ...graph.rounding import round_to
from ...graph.type_names import type_name
from .cache import PASSING, Cache
from .grids import E4M3 as GRID
from .qdq import Writer, dequantizing, quantizing

E4M3 = ir.DataType.FLOAT8E4M3FN


def store_cache(writer: Writer, cache: Cache, scale: ir.TensorProtocol) -> None:
    """Rewrite one cache of the writer's graph in place; `scale`: a scalar.

    Raises UsageError where the graph's type cannot hold every number of the cache well enough to give its code back.
    """
    graph, past = writer.graph, cache.past
    _check_round_trip(cache, float(scale.numpy()))
    given = writer.constant(f"{past.name}/scale", scale)
    written = writer.pair(cache.update, given, E4M3, f"{past.name}/update")
    cache.node.replace_input_with(cache.index, written)
    _store_output(graph, cache, given)
    back = ir.Value(name=f"{past.name}/wide", type=cache.held.type, shape=past.shape)
    for value in dict.fromkeys((cache.held, past)):
        value.replace_all_uses_with(back)
    past.type = ir.TensorType(E4M3)
    graph.insert_before(graph[0], dequantizing(past, given, back))
    _remove_passing(graph, cache.held, past)


def _check_round_trip(cache: Cache, scale: float) -> None:
    """Each step of a decoder dequantises the cache and quantises it again: a code that changed would drift away."""
    dtype = cache.held.dtype
    assert dtype is not None
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).float()
    codes = codes[codes.isfinite()]
    wide = round_to(codes * scale, dtype)
    assert isinstance(wide, torch.Tensor)
    kept = wide.isfinite() & (GRID.round(wide.float() / scale) == codes)
    if not bool(kept.all()):
        raise UsageError(
            f"store {cache.name!r} in FP8",
            found=f"with scale {scale:g}, {int((~kept).sum())} of {len(codes)} numbers do not survive {type_name(dtype)}",
            fix="Use base bf16, or leave kv_cache off",
        )


def _store_output(graph: ir.Graph, cache: Cache, given: ir.Value) -> None:
    """Let the graph give the codes of what the node gives, and every reader read those."""
    whole, present = cache.whole, cache.present
    name, readers = str(present.name), list(whole.uses())
    present.name = f"{name}/wide"
    codes = ir.Value(name=name, type=ir.TensorType(E4M3), shape=present.shape)
    back = ir.Value(name=f"{name}/dequantized", type=whole.type, shape=whole.shape)
    quantize = quantizing(whole, given, codes)
    graph.insert_after(cache.node, [quantize, dequantizing(codes, given, back)])
    for node, index in readers:
        node.replace_input_with(index, back)
    for position, output in enumerate(graph.outputs):
        if output is present:
            graph.outputs[position] = codes
    _remove_passing(graph, present, back)
    producer = back.producer()
    if not back.uses() and producer is not None:
        graph.remove(producer, safe=True)


def _remove_passing(graph: ir.Graph, value: ir.Value, stop: ir.Value) -> None:
    """The casts and identities that make `value` of `stop`, where nothing reads them any more."""
    while value is not stop and not value.uses() and not value.is_graph_output():
        node = value.producer()
        if node is None or node.op_type not in PASSING or node.inputs[0] is None:
            return
        value = node.inputs[0]
        graph.remove(node, safe=True)
