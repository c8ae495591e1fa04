"""What the caller decides about a typed graph."""

import math
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ...core.dtypes import DType
from ...core.errors import UsageError
from ...graph.rounding import LARGEST


@dataclass(frozen=True, slots=True)
class PrecisionOptions:
    """How to type a graph.

    precision: FP16 or BF16, of weights, matrix products and the residual stream. io: "keep" leaves float inputs and
    outputs as they are, "graph" gives them `precision`. repair: scale by powers of two where the range would be
    passed. island: type of what cannot be repaired, FP32 or BF16. margin: how many times a measured magnitude
    must fit below the largest number; values bounded by algebra need none. fuse: recognise norms, gates, rotary
    embeddings and attention first (export/fusions).
    """

    precision: DType
    io: Literal["keep", "graph"] = "keep"
    repair: bool = True
    island: DType = DType.FP32
    margin: float = 2.0
    fuse: bool = True

    def __post_init__(self) -> None:
        if self.precision not in (DType.FP16, DType.BF16):
            raise UsageError(
                f"precision {self.precision.value}",
                found="not a 16-bit float",
                fix="Use fp16 or bf16",
            )
        if self.island not in (DType.FP32, DType.BF16):
            raise UsageError(
                f"island {self.island.value}", found="no wider range", fix="Use fp32 or bf16"
            )
        if not 1 <= self.margin < math.inf:
            raise UsageError(f"margin {self.margin}", found="not 1 or more", fix="Use 1 to 16")

    @property
    def low(self) -> ir.DataType:
        """The 16-bit type."""
        return ir.DataType(self.precision.onnx)

    @property
    def limit(self) -> float:
        """The largest number of the 16-bit type."""
        return LARGEST[self.low]

    @property
    def smallest(self) -> float:
        """The smallest number with all its bits: a smaller one is held as a subnormal."""
        return {DType.FP16: 2.0**-14, DType.BF16: 2.0**-126}[self.precision]
