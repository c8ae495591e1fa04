"""Legal forms that are usually a mistake in a decoder: reported, never refused."""

from collections.abc import Iterator

import onnx_ir as ir

from ..type_names import DataType, type_name
from .rule import Fault, Rule, bodies, domain_of, node_label

_HALF = (DataType.FLOAT16, DataType.BFLOAT16)
# Reductions that overflow or lose their small terms where their input is 16-bit.
_SUMS = frozenset({"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceL1", "CumSum"})


def _nodes(model: ir.Model, *names: str) -> Iterator[ir.Node]:
    for graph, _ in bodies(model):
        yield from (n for n in graph if n.op_type in names and domain_of(n) == "")


def _angles(model: ir.Model) -> Iterator[Fault]:
    for node in _nodes(model, "Sin", "Cos"):
        value = node.inputs[0]
        if value is not None and value.dtype in _HALF:
            yield Fault(
                node_label(node),
                f"its angles {value.name!r} are {type_name(value.dtype)}: positions above "
                f"{'70' if value.dtype == DataType.FLOAT16 else '35'} or so come out wrong",
                "Compute angles in fp32 and cast the sine and cosine",
            )


def _causal(model: ir.Model) -> Iterator[Fault]:
    for node in _nodes(model, "Attention"):
        causal = node.attributes.get("is_causal")
        if causal is None or causal.is_ref() or not causal.as_int():
            continue
        if any(value is not None for value in node.inputs[4:]):
            continue  # a cache input carries the offset
        query, key = (_length(value) for value in node.inputs[:2])
        if query is None or query != key:
            yield Fault(
                node_label(node),
                f"is_causal without past or nonpad_kv_seqlen, for {query or 'unknown'} queries and "
                f"{key or 'unknown'} keys: query i sees keys 0..i, not those before the last queries",
                "Give past_key/past_value or nonpad_kv_seqlen, or an explicit mask",
            )


def _length(value: ir.Value | None) -> int | str | None:
    """The sequence axis of a query or key [B, S, H] or [B, N, S, D]."""
    if value is None or value.shape is None or len(value.shape) not in (3, 4):
        return None
    size = value.shape[-2]
    return size if isinstance(size, int) else size.value


def _half_sums(model: ir.Model) -> Iterator[Fault]:
    for node in _nodes(model, *_SUMS):
        value = node.inputs[0]
        if value is not None and value.dtype == DataType.FLOAT16:
            yield Fault(
                node_label(node),
                f"it sums {value.name!r} in fp16: a square passes 65504 from 256 on",
                "Cast to fp32 around it, or use RMSNormalization or LayerNormalization",
            )


def _cosine_batch(model: ir.Model) -> Iterator[Fault]:
    for node in _nodes(model, "RotaryEmbedding"):
        x, cos = node.inputs[:2]
        if x is None or cos is None or x.shape is None or cos.shape is None or len(cos.shape) != 3:
            continue
        if cos.shape[0] == 1 and x.shape[0] != 1:
            yield Fault(
                node_label(node),
                f"cos and sin have batch 1, the input has batch {x.shape[0]}: it runs at batch 1 only",
                "Expand cos and sin to the batch, or give position_ids",
            )


RULES = (
    Rule("angles", "angles of rotary embeddings are fp32", _angles, ("Sin", "Cos")),
    Rule(
        "causal offset",
        "is_causal knows how many keys precede the queries",
        _causal,
        ("Attention",),
    ),
    Rule("half sums", "fp16 numbers are not summed as fp16", _half_sums, tuple(sorted(_SUMS))),
    Rule(
        "rotary batch",
        "rotary caches have the batch of their input",
        _cosine_batch,
        ("RotaryEmbedding",),
    ),
)
