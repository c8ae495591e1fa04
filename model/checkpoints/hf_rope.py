"""Where a config.json states its rotary positions -> RopeConfig.

Both spellings are read: rope_theta with rope_scaling, and rope_parameters (transformers 5).
"""

import math

from ...core.errors import UsageError
from ..config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from ..fields import Fields


def rope_fields(fields: Fields) -> Fields | None:
    """The object that states the positions, wherever this version of the file has it; None where there is none."""
    return fields.fields("rope_parameters") or fields.fields("rope_scaling")


def rope_from_hf(
    fields: Fields, head_dim: int, rope: Fields | None = None, *, theta: float = 10000.0
) -> RopeConfig:
    """The positions of a config.json; rope: the object that states them, None to find it; theta: what its absence means.

    Raises UsageError for a kind of scaling that is not supported, or one whose numbers are missing.
    """
    rope = rope_fields(fields) if rope is None else rope
    theta = fields.number("rope_theta", theta)
    if rope is None:
        return RopeConfig(theta, rotary_dim=_rotary_dim(fields, head_dim))
    theta = rope.number("rope_theta", theta)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise UsageError(rope.source, found=f"rope_type {kind!r}", fix=f"Supported: {known}")
    rotary_dim = _rotary_dim(rope, head_dim) or _rotary_dim(fields, head_dim)
    return RopeConfig(theta, _SCALINGS[kind](rope, fields), rotary_dim)


def yarn_stretch(factor: float, mscale: float = 1.0) -> float:
    """How much YaRN sharpens attention for a context `factor` times as long (arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _rotary_dim(fields: Fields, head_dim: int) -> int | None:
    part = fields.number("partial_rotary_factor", 1.0)
    return None if part == 1 else int(head_dim * part)


def _no_scaling(rope: Fields, fields: Fields) -> RopeScaling | None:
    return None


def _linear(rope: Fields, fields: Fields) -> RopeScaling | None:
    return LinearScaling(rope.number("factor"))


def _llama3(rope: Fields, fields: Fields) -> RopeScaling | None:
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.whole("original_max_position_embeddings"),
    )


def _yarn(rope: Fields, fields: Fields) -> RopeScaling | None:
    """attention_factor stated, or from mscale and mscale_all_dim (DeepSeek), or from the factor alone."""
    original, factor = _original(rope, fields), _factor(rope, fields)
    mscale, everywhere = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    stretch = yarn_stretch(factor)
    if mscale and everywhere:
        stretch = yarn_stretch(factor, mscale) / yarn_stretch(factor, everywhere)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor", stretch),
        truncate=rope.flag("truncate", True),
    )


def _longrope(rope: Fields, fields: Fields) -> RopeScaling | None:
    original, factor = _original(rope, fields), _factor(rope, fields)
    stretch = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short_factor=_numbers(rope, "short_factor"),
        long_factor=_numbers(rope, "long_factor"),
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", stretch),
    )


def _original(rope: Fields, fields: Fields) -> int:
    """The context that the model was first trained with: in the object, or beside it (Phi-3)."""
    beside = fields.whole("original_max_position_embeddings", 0) or fields.whole(
        "max_position_embeddings"
    )
    return rope.whole("original_max_position_embeddings", beside)


def _factor(rope: Fields, fields: Fields) -> float:
    stretched = fields.whole("max_position_embeddings") / max(_original(rope, fields), 1)
    return rope.number("factor", stretched)


def _numbers(rope: Fields, key: str) -> tuple[float, ...]:
    values = rope.array(key)
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise UsageError(rope.source, found=f"{key} holds more than numbers")
    return tuple(map(float, values))


_SCALINGS = {
    "default": _no_scaling,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # Phi-3's first name for it
}
