"""Rounding to every element type against numpy and ml_dtypes, on every bit pattern and every tie."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from blockforge.graph.rounding import LARGEST, integer_from_float, round_to
from blockforge.graph.type_names import DataType
from blockforge.graph.values import TORCH_TYPES, Narrow, as_bits, value_from_numpy

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # NaN patterns

SIXTEEN_BITS = {DataType.FLOAT16: np.float16, DataType.BFLOAT16: ml_dtypes.bfloat16}
FP8 = {
    DataType.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    DataType.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    DataType.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    DataType.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
GRIDS = {
    DataType.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    DataType.FLOAT6E2M3: ml_dtypes.float6_e2m3fn,
    DataType.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}


def every(dtype, bits: int) -> np.ndarray:
    """All bit patterns of a type."""
    return np.arange(2**bits, dtype=f"u{max(bits // 8, 1)}").view(dtype)


def same_bits(actual, expected: np.ndarray) -> None:
    """Equal bit for bit; any NaN equals any NaN."""
    bits = as_bits(actual)
    if bits.dtype.is_floating_point:
        bits = bits.view(torch.int16)
    mine, theirs = (
        bits.numpy().view(f"u{expected.itemsize}"),
        expected.view(f"u{expected.itemsize}"),
    )
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(mine[~nan], theirs[~nan])
    assert torch.isnan(actual.float()[torch.from_numpy(nan)]).all()


def neighbours(dtype) -> np.ndarray:
    """Every finite number of a 16-bit type, every middle of two neighbours, and both sides of each middle (fp64)."""
    numbers = np.unique(every(dtype, 16).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    middles = (numbers[1:] + numbers[:-1]) / 2
    edge = numbers[-1] + (numbers[-1] - numbers[-2]) / 2  # where rounding begins to give infinity
    edges = [
        s * e for s in (1, -1) for e in (np.nextafter(edge, 0), edge, np.nextafter(edge, np.inf))
    ]
    around = [np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)]
    return np.concatenate([numbers, middles, *around, edges])


def round_once(x: np.ndarray, dtype) -> np.ndarray:
    """fp64 -> 16 bits in one rounding: numpy does it for fp16; for bf16 choose between the two neighbours."""
    if dtype is np.float16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16)
    low = np.abs(x).astype(np.float32)
    low = np.where(low.astype(np.float64) > np.abs(x), np.nextafter(low, np.float32(0)), low)
    low = (low.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    code = (low.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    high_code = code + np.uint16(1)
    values = [c.view(ml_dtypes.bfloat16).astype(np.float64) for c in (code, high_code)]
    above = np.where(np.isinf(values[1]), 2.0**128, values[1])
    distance = (np.abs(x) - values[0]) - (above - np.abs(x))
    up = (distance > 0) | ((distance == 0) & (code % 2 == 1))
    chosen = np.where(up, high_code, code).astype(np.uint16)
    return (chosen | (np.signbit(x).astype(np.uint16) << 15)).view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_every_sixteen_bit_number_survives_widening(dtype):
    patterns = every(SIXTEEN_BITS[dtype], 16)
    value = value_from_numpy(patterns, dtype)
    np.testing.assert_array_equal(value.float().numpy(), patterns.astype(np.float32))
    same_bits(round_to(value.float(), dtype), patterns)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_every_tie_and_its_sides_round_once(dtype):
    """fp64 -> fp32 -> fp16 would round the numbers beside a tie to the wrong side."""
    numbers = neighbours(SIXTEEN_BITS[dtype])
    same_bits(round_to(torch.from_numpy(numbers), dtype), round_once(numbers, SIXTEEN_BITS[dtype]))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_every_tie_rounds_from_fp32(dtype):
    numbers = neighbours(SIXTEEN_BITS[dtype]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = numbers.astype(SIXTEEN_BITS[dtype])
    same_bits(round_to(torch.from_numpy(numbers), dtype), expected)


def test_special_numbers_round_to_themselves():
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0], dtype=torch.float64)
    for dtype in SIXTEEN_BITS:
        rounded = round_to(special, dtype).double()
        torch.testing.assert_close(rounded, special, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(rounded[3:]), torch.signbit(special[3:]))


@pytest.mark.parametrize("source", [np.float16, ml_dtypes.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_saturates_and_rounds_to_even(dtype, source):
    """ml_dtypes does not saturate: clip first, as ONNX's table says."""
    numbers = every(source, 16).astype(np.float32)
    largest = LARGEST[dtype]
    expected = np.clip(numbers, -largest, largest).astype(FP8[dtype])
    same_bits(round_to(torch.from_numpy(numbers), dtype), expected)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_without_saturation_says_out_of_range(dtype):
    numbers = every(np.float16, 16).astype(np.float32)
    expected = numbers.astype(FP8[dtype])
    same_bits(round_to(torch.from_numpy(numbers), dtype, saturate=False), expected)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_near_miss_at_the_range_edge(dtype):
    """One step beyond the last number that still rounds down."""
    patterns = every(FP8[dtype], 8).astype(np.float64)
    finite = np.unique(patterns[np.isfinite(patterns)])
    edge = finite[-1] + (finite[-1] - finite[-2]) / 2
    numbers = np.array([np.nextafter(edge, 0), edge, np.nextafter(edge, np.inf)])
    expected = np.array(
        [np.nextafter(np.float32(edge), 0), edge, np.nextafter(np.float32(edge), np.inf)]
    )
    expected = expected.astype(np.float32).astype(FP8[dtype])
    same_bits(round_to(torch.from_numpy(numbers), dtype, saturate=False), expected)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_fp8_pattern_survives(dtype):
    patterns = every(FP8[dtype], 8)
    value = value_from_numpy(patterns, dtype)
    np.testing.assert_array_equal(value.float().numpy(), patterns.astype(np.float32))


@pytest.mark.parametrize("dtype", GRIDS, ids=str)
def test_four_and_six_bit_floats_round_to_even_codes(dtype):
    numbers = every(np.float16, 16).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    largest = float(ml_dtypes.finfo(GRIDS[dtype]).max)
    expected = np.clip(numbers, -largest, largest).astype(GRIDS[dtype]).astype(np.float32)
    rounded = round_to(torch.from_numpy(numbers), dtype)
    assert isinstance(rounded, Narrow)
    np.testing.assert_array_equal(rounded.data.numpy(), expected)
    np.testing.assert_array_equal(np.signbit(rounded.data.numpy()), np.signbit(expected))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_e8m0_keeps_powers_of_two(mode, saturate):
    rng = np.random.default_rng(0)
    numbers = np.exp2(rng.uniform(-140, 127.9, 4000)).astype(np.float32)
    numbers = np.concatenate([numbers, np.exp2(np.arange(-126, 128)).astype(np.float32), [np.nan]])
    numbers = numbers[(numbers >= 2.0**-126) | np.isnan(numbers)].astype(np.float32)
    expected = onnx.numpy_helper.to_float8e8m0(numbers, saturate, mode)
    same_bits(
        round_to(torch.from_numpy(numbers), DataType.FLOAT8E8M0, saturate=saturate, mode=mode),
        expected,
    )


@pytest.mark.parametrize(
    "target",
    [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32],
)
@pytest.mark.parametrize("source", [torch.float16, torch.float32, torch.float64])
def test_floats_become_integers_towards_zero_and_saturate(source, target):
    bounds = torch.iinfo(target)
    numbers = [0.0, 0.9, -0.9, 1.5, -1.5, 2.5, 1e30, -1e30, torch.inf, -torch.inf, torch.nan]
    numbers += [float(bounds.max), float(bounds.min), float(bounds.max) * 2, 127.5, -128.5]
    wide = torch.tensor(numbers).to(source)

    def expected(number: float) -> int:
        if number != number:
            return 0
        if abs(number) == float("inf"):
            return bounds.max if number > 0 else bounds.min
        return min(max(int(number), bounds.min), bounds.max)

    assert integer_from_float(wide, target).tolist() == [expected(n) for n in wide.tolist()]


def test_unsigned_64_bit_integers_reach_their_upper_half():
    numbers = torch.tensor(
        [2.0**63, 2.0**63 + 2.0**40, 1.8e19, 2.0**64, 3e20, -1.0], dtype=torch.float64
    )
    expected = [2**63, 2**63 + 2**40, 18 * 10**18, 2**64 - 1, 2**64 - 1, 0]
    assert integer_from_float(numbers, torch.uint64).tolist() == expected


def test_integers_wrap():
    numbers = torch.tensor([200, -129, 300, 65536 + 5])
    for dtype, kind in ((DataType.INT8, "i1"), (DataType.UINT8, "u1"), (DataType.INT16, "i2")):
        expected = numbers.numpy().astype(kind)
        np.testing.assert_array_equal(round_to(numbers, dtype).numpy(), expected)
    four = round_to(torch.tensor([7, 8, -9, 15, 16]), DataType.INT4)
    assert isinstance(four, Narrow)
    assert four.data.tolist() == [7, -8, 7, -1, 0]


def test_integers_become_sixteen_bit_floats_in_one_rounding():
    numbers = torch.tensor([2**24 + 2**16 + 1, 16843009, 2**40 + 2**32 + 1, 65519, 65520, -70000])
    expected = numbers.numpy().astype(np.float64)
    same_bits(round_to(numbers, DataType.BFLOAT16), round_once(expected, ml_dtypes.bfloat16))
    same_bits(round_to(numbers, DataType.FLOAT16), round_once(expected, np.float16))


def test_booleans():
    assert round_to(torch.tensor([0.0, -0.0, 0.1, torch.nan]), DataType.BOOL).tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert round_to(torch.tensor([True, False]), DataType.FLOAT16).tolist() == [1.0, 0.0]


def test_every_torch_type_has_one_data_type():
    assert len(set(TORCH_TYPES.values())) == len(TORCH_TYPES)
