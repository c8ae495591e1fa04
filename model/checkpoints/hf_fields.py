"""Look-ups that several families' config.json share."""

from ...core.errors import UsageError
from ..config import AttentionConfig
from ..fields import Fields

UNSUPPORTED = "Not supported yet"


def stated_head_dim(fields: Fields, key: str, hidden_size: int, num_heads: int) -> int:
    """The value of `key`, else hidden_size / num_heads; UsageError unless that is whole."""
    if fields.values.get(key) is not None:
        return fields.whole(key)
    if num_heads < 1 or hidden_size % num_heads:
        raise UsageError(
            fields.source,
            found=f"hidden size {hidden_size} is no multiple of {num_heads} heads",
            fix=f"State {key}, or choose sizes that divide",
        )
    return hidden_size // num_heads


def heads(fields: Fields, *, kv_heads: int | None = None) -> tuple[int, int, int]:
    """Query heads, key-value heads and head size; kv_heads: what an absent key means, None for as many as queries."""
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    num_kv_heads = fields.whole("num_key_value_heads", num_heads if kv_heads is None else kv_heads)
    return num_heads, num_kv_heads, stated_head_dim(fields, "head_dim", hidden_size, num_heads)


def windowed_layers(fields: Fields, num_layers: int, default: list[str]) -> tuple[bool, ...]:
    """Which layers have a sliding window, by layer_types; default: what an absent key means."""
    kinds = fields.array("layer_types", default)
    known = {"sliding_attention": True, "full_attention": False}
    if len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise UsageError(
            fields.source,
            found=f"layer_types {kinds[:4]}... of {len(kinds)} layers",
            fix=f"Give {num_layers} of {', '.join(known)}",
        )
    return tuple(known[kind] for kind in kinds)


def activation(fields: Fields, key: str, known: dict[str, str], absent: str) -> str:
    """Our name of the activation that `key` names; UsageError lists those known."""
    name = fields.text(key, absent)
    if name not in known:
        raise UsageError(
            fields.source, found=f"{key} is {name!r}", fix=f"Supported: {', '.join(known)}"
        )
    return known[name]


def exceptions_of(
    windowed: tuple[bool, ...], local: AttentionConfig, everything: AttentionConfig
) -> "tuple[AttentionConfig, tuple[int, ...], AttentionConfig]":
    """The commoner attention, the layers that have the other, and the other."""
    narrow = sum(windowed)
    most = narrow * 2 >= len(windowed)
    others = tuple(i for i, window in enumerate(windowed) if window != most)
    return (local, others, everything) if most else (everything, others, local)
