"""The base of every manifest record, and the names that records spell types and precisions with."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

DTypeName = Literal[
    "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "int64", "int32", "int8", "uint8", "bool"
]


PrecisionName = Literal[
    "fp32", "fp16", "bf16", "fp8", "fp8-weights", "int8-weights", "int4-weights", "nvfp4"
]


class Record(BaseModel):
    """Typed, closed and frozen; NaN and infinities are spelled as strings in JSON."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )
