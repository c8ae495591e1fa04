"""What a precision means for memory and for the peak rate, sub-layer by sub-layer."""

from dataclasses import dataclass

from ...core.errors import UsageError
from .parts import SubLayer


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Bytes per stored weight and activation, and the row of a GPU's peaks that its products run at."""

    weight_itemsize: int
    activation_itemsize: int
    peak: str


_BF16 = NumberFormat(2, 2, "bf16")
_PLAIN = {
    "fp32": NumberFormat(4, 4, "fp32"),
    "tf32": NumberFormat(4, 4, "tf32"),  # stored as FP32, multiplied with ten bits of mantissa
    "fp16": NumberFormat(2, 2, "fp16"),
    "bf16": _BF16,
}
_FP8 = NumberFormat(1, 2, "fp8_e4m3")
_IN_FP8 = {SubLayer.QKV, SubLayer.OUTPUT_PROJECTION, SubLayer.FEED_FORWARD}
FORMATS = (*_PLAIN, "fp8_e4m3")


def format_of(dtype: str, sub_layer: SubLayer) -> NumberFormat:
    """How `sub_layer` is stored and multiplied when the model runs in `dtype`.

    fp8_e4m3 covers the matrices of the blocks, as FP8 recipes do; embedding, norms, attention, KV cache
    and head stay in bf16. Raises UsageError that lists the formats.
    """
    if dtype == "fp8_e4m3":
        return _FP8 if sub_layer in _IN_FP8 else _BF16
    if dtype not in _PLAIN:
        known = ", ".join(FORMATS)
        raise UsageError(f"dtype {dtype!r}", found="no precision of engines", fix=f"Known: {known}")
    return _PLAIN[dtype]
