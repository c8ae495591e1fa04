"""The grids that weights and activations are rounded to, by name, with the rounding that the evaluator uses.

e4m3: FP8, saturated at 448; int8 and int4: symmetric, -127..127 and -7..7; e2m1: FP4, saturated at 6.
Rounding is to nearest, ties to even.
"""

import onnx_ir as ir
import torch

from ...graph.rounding import round_to
from ..calibration.observers import Grid


def _float8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def _int8(x: torch.Tensor) -> torch.Tensor:
    return x.round().clamp(-127, 127)


def _int4(x: torch.Tensor) -> torch.Tensor:
    return x.round().clamp(-7, 7)


def _float4(x: torch.Tensor) -> torch.Tensor:
    found = round_to(x, ir.DataType.FLOAT4E2M1)
    assert not isinstance(found, torch.Tensor)
    return found.data


E4M3 = Grid("fp8_e4m3", 448.0, _float8)
INT8 = Grid("int8", 127.0, _int8)
INT4 = Grid("int4", 7.0, _int4)
E2M1 = Grid("fp4_e2m1", 6.0, _float4)

ONNX_TYPES: dict[str, ir.DataType] = {
    E4M3.name: ir.DataType.FLOAT8E4M3FN,
    INT8.name: ir.DataType.INT8,
    INT4.name: ir.DataType.INT4,
    E2M1.name: ir.DataType.FLOAT4E2M1,
}
