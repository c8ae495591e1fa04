"""Bytes of memory traffic per element of a row, with activations of two bytes: what fusion can save.

A norm in primitive operators: cast 6, square 8, mean 4, scale 8, cast back 6, weight 4 = 36. In one kernel: 4.
Vectors along the row and statistics are not counted: rows are many.
"""

from dataclasses import dataclass

from ..core.dtypes import DType
from .table import ACTIVATIONS, Table


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of the unfused graph: bytes per element as primitive operators, and as one kernel of its own."""

    name: str
    primitive: int
    kernel: int


ADD = Step("add", 6, 6)
RMS_NORM = Step("RMSNormalization", 36, 4)
LAYER_NORM = Step("LayerNormalization", 52, 4)  # + mean 4, subtract 8, bias 4
SWIGLU = Step("Swish, Mul", 16, 6)
GEGLU = Step("Gelu, Mul", 28, 6)  # divide 4, erf 4, add 4, multiply 6 and 4, gate 6
ROPE = Step("RotaryEmbedding", 20, 4)
QUANTISE = Step("QuantizeLinear", 11, 3)  # cast 6, divide and round 5


def fused_bytes(table: Table) -> int:
    """Bytes per element of a row that the fused kernel moves: each activation once.

    q and k are rows of their own, so an element of either is read and written once.
    """
    bytes_ = 0
    for tensor in table.tensors:
        if len(tensor.shape.split()) < 2 or tensor.shape.endswith("/2"):
            continue  # along the row, a scalar, or shared by the heads
        types = table.types[tensor.type]
        times = 2 if tensor.shape.endswith("2*N") else 1
        bytes_ += times * (DType.FP16 if types == ACTIVATIONS else types[0]).itemsize
    return bytes_ // 2 if table.row == "D" else bytes_


def primitive_bytes(steps: tuple[Step, ...]) -> int:
    """Bytes per element of the graph in primitive operators."""
    return sum(step.primitive for step in steps)


def kernel_bytes(steps: tuple[Step, ...]) -> int:
    """Bytes per element of the graph with one kernel per step."""
    return sum(step.kernel for step in steps)
