"""Rounding to every grid against ml_dtypes and numpy, for all 16-bit patterns and for codes as the file stores them."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

from blockforge.export.quantize.grids import E2M1, E4M3, INT4, INT8
from blockforge.export.quantize.weights import WeightFormat, codes_tensor

HALVES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def every(kind):
    """Every finite number of a 16-bit type, as fp32."""
    numbers = np.arange(2**16, dtype=np.uint16).view(HALVES[kind]).astype(np.float32)
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_e4m3_rounds_every_half_as_ml_dtypes_does(kind, scale):
    x = every(kind) / np.float32(scale)
    expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    found = E4M3.round(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    stored = codes_tensor(torch.from_numpy(found)[None], WeightFormat(E4M3), False, "w")
    assert stored.dtype == ir.DataType.FLOAT8E4M3FN
    assert stored.tobytes() == expected.tobytes()


def test_e4m3_codes_are_a_fixed_point():
    """All 254 finite codes come back as they are, signed zero included."""
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    codes = codes[np.isfinite(codes.astype(np.float32))]
    wide = torch.from_numpy(codes.astype(np.float32))
    stored = codes_tensor(E4M3.round(wide)[:, None], WeightFormat(E4M3), True, "w")
    assert len(codes) == 254 and stored.tobytes() == codes.tobytes()


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("grid", "largest"), [(INT8, 127), (INT4, 7)])
def test_integers_round_ties_to_even_and_saturate(kind, grid, largest):
    x = every(kind)
    expected = np.clip(np.rint(x), -largest, largest)
    np.testing.assert_array_equal(grid.round(torch.from_numpy(x)).numpy(), expected)


@pytest.mark.parametrize("kind", HALVES)
def test_e2m1_rounds_as_ml_dtypes_does(kind):
    x = every(kind)
    expected = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(E2M1.round(torch.from_numpy(x)).numpy(), expected)


@pytest.mark.parametrize(
    ("grid", "kind"), [(INT4, ml_dtypes.int4), (E2M1, ml_dtypes.float4_e2m1fn)]
)
def test_four_bit_codes_are_packed_two_a_byte_low_half_first(grid, kind):
    codes = torch.tensor([[1.0, -2.0, 3.0], [4.0, 0.0, -1.0]])
    stored = codes_tensor(codes, WeightFormat(grid, 1), False, "w")
    halves = codes.numpy().reshape(-1).astype(kind).view(np.uint8) & 15
    assert stored.tobytes() == bytes(halves[0::2] | halves[1::2] << 4)


def test_a_transposed_operand_is_stored_transposed():
    codes = torch.arange(6.0).reshape(2, 3)
    stored = codes_tensor(codes, WeightFormat(INT8), True, "w")
    np.testing.assert_array_equal(stored.numpy(), codes.numpy().T)
