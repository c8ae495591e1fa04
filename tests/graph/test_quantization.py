"""QuantizeLinear and DequantizeLinear against ml_dtypes and plain formulas, per tensor, axis and block."""

import ml_dtypes
import numpy as np
import pytest
import torch

from blockforge.core.errors import UsageError

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # numpy's on NaN and infinite patterns

FP8 = {17: (ml_dtypes.float8_e4m3fn, 448.0), 19: (ml_dtypes.float8_e5m2, 57344.0)}


def fp8(x: np.ndarray, number: int) -> np.ndarray:
    kind, largest = FP8[number]
    return np.clip(x, -largest, largest).astype(kind)


@pytest.mark.parametrize("number", FP8)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float"])
def test_fp8_quantises_every_half(evaluate, source, number):
    """Every 16-bit pattern over a scale that is no power of two: one fp32 division, one rounding, saturated."""
    kind = np.float16 if source == "float16" else ml_dtypes.bfloat16
    patterns = np.arange(2**16, dtype=np.uint16).view(kind)
    x = torch.from_numpy(patterns.view(np.int16)).view(
        torch.float16 if source == "float16" else torch.bfloat16
    )
    x = x.float() if source == "float" else x
    scale = torch.tensor(0.3)
    body = f"""g ({source}[65536] x, float s) => (float8e{"4m3fn" if number == 17 else "5m2"}[65536] y)
        {{ y = QuantizeLinear<output_dtype = {number}>(x, s) }}"""
    y = evaluate(body, {"x": x, "s": scale}).outputs["y"]
    expected = fp8(patterns.astype(np.float32) / np.float32(0.3), number)
    nan = np.isnan(patterns.astype(np.float32))
    np.testing.assert_array_equal(y.view(torch.uint8).numpy()[~nan], expected.view(np.uint8)[~nan])
    assert y.float()[torch.from_numpy(nan)].isnan().all()


def test_fp8_dequantises_every_pattern(evaluate):
    patterns = np.arange(256, dtype=np.uint8)
    x = torch.from_numpy(patterns).view(torch.float8_e4m3fn)
    body = "g (float8e4m3fn[256] x, float16 s) => (float16[256] y) { y = DequantizeLinear(x, s) }"
    scale = torch.tensor(0.1).half()
    y = evaluate(body, {"x": x, "s": scale}).outputs["y"]
    expected = patterns.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale.item())
    np.testing.assert_array_equal(y.numpy(), expected.astype(np.float16))


def test_int8_rounds_ties_to_even_and_saturates(evaluate):
    body = "g (float[8] x, float s, int8 z) => (int8[8] y) { y = QuantizeLinear(x, s, z) }"
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 300.0, -300.0, torch.nan])
    y = evaluate(
        body, {"x": x, "s": torch.tensor(1.0), "z": torch.tensor(0, dtype=torch.int8)}
    ).outputs["y"]
    assert y.tolist() == [0, 2, 2, 0, -2, 127, -128, 0]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_per_channel_lies_along_its_axis(evaluate, axis):
    body = f"""g (float[3, 4] x, float[N] s, uint8[N] z) => (uint8[3, 4] q, float[3, 4] y) {{
        q = QuantizeLinear<axis = {axis}>(x, s, z)  y = DequantizeLinear<axis = {axis}>(q, s, z) }}"""
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) * 10
    n = x.shape[axis]
    s, z = torch.linspace(0.1, 0.4, n), torch.arange(n).to(torch.uint8) + 3
    shape = (n, 1) if axis == 0 else (1, n)
    outputs = evaluate(body, {"x": x, "s": s, "z": z}).outputs
    q = np.clip(np.rint(x.numpy() / s.reshape(shape).numpy()) + z.reshape(shape).numpy(), 0, 255)
    np.testing.assert_array_equal(outputs["q"], q)
    expected = (q - z.reshape(shape).numpy()) * s.reshape(shape).numpy()
    np.testing.assert_allclose(outputs["y"], expected, rtol=2.0**-23)


def test_a_scale_of_another_length_is_refused(evaluate):
    body = "g (float[3, 4] x, float[3] s) => (uint8[3, 4] q) { q = QuantizeLinear(x, s) }"
    with pytest.raises(UsageError, match=r"3 scales along axis 1 of \[3, 4\]"):
        evaluate(body, {"x": torch.zeros(3, 4), "s": torch.ones(3)})


def test_blocks_share_a_scale(evaluate):
    """4-bit weights in blocks of 4 along the rows; the last block is short."""
    body = """g (float[6, 2] x, float[2, 2] s) => (float[6, 2] y) {
        q = QuantizeLinear<axis = 0, block_size = 4, output_dtype = 22>(x, s)
        y = DequantizeLinear<axis = 0, block_size = 4>(q, s) }"""
    x = torch.linspace(-9, 9, 12).reshape(6, 2)
    s = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
    wide = s.repeat_interleave(4, 0)[:6]
    expected = (x / wide).round().clamp(-8, 7) * wide
    torch.testing.assert_close(
        evaluate(body, {"x": x, "s": s}).outputs["y"], expected, rtol=0, atol=0
    )


def test_exact_keeps_the_grid_of_quantised_types(evaluate):
    """In fp64 the division and the product are exact; the 8-bit grid stays, it is what the graph means."""
    body = """g (float[5] x, float s) => (float[5] y) {
        q = QuantizeLinear<output_dtype = 17>(x, s)  y = DequantizeLinear(q, s) }"""
    x = torch.tensor([0.1, 1.0, 17.3, 1000.0, -3.0], dtype=torch.float64)
    s = torch.tensor(0.3, dtype=torch.float64)
    result = evaluate(body, {"x": x, "s": s}, exact=True, keep=("q",))
    assert result.kept["q"].dtype == torch.float8_e4m3fn
    expected = fp8(x.numpy() / 0.3, 17).astype(np.float64) * 0.3
    np.testing.assert_array_equal(result.outputs["y"].numpy(), expected)
    plain = evaluate(body, {"x": x.float(), "s": s.float()}).outputs["y"]
    np.testing.assert_allclose(plain.numpy(), expected, rtol=1e-6)


def test_a_dequantised_weight_meets_its_product_in_fp32(evaluate):
    """int8 weights, fp16 activations: the product accumulates in fp32 and rounds once."""
    body = """g (float16[2, 64] x, int8[64, 3] w, float16[3] s) => (float16[2, 3] y) {
        d = DequantizeLinear<axis = 1>(w, s)  y = MatMul(x, d) }"""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, generator=generator).half()
    w = torch.randint(-128, 128, (64, 3), generator=generator, dtype=torch.int8)
    s = torch.tensor([0.01, 0.02, 0.03]).half()
    weight = (w.double() * s.double()).half()
    y = evaluate(body, {"x": x, "w": w, "s": s}).outputs["y"]
    torch.testing.assert_close(y.double(), x.double() @ weight.double(), rtol=2.0**-11, atol=1e-4)
