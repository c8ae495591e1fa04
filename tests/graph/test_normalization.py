"""Normalisations and softmax: fp32 inside, one rounding outside, and the decomposed fp16 norm that overflows."""

import numpy as np
import pytest
import torch

from blockforge.core.errors import UsageError

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> tuple[np.ndarray, ...]:
    x = x.astype(np.float64)
    mean = x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) * inverse * w + b, mean, inverse


def large(dtype, scale=300.0, shape=(4, 64)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("name", HALVES)
def test_rms_norm_of_large_halves_keeps_fp32_inside(evaluate, name):
    """Squares of 300 pass fp16's range; the result is one rounding away from float64."""
    dtype = HALVES[name]
    x, w = large(dtype), torch.linspace(0.5, 1.5, 64).to(dtype)
    body = f"g ({name}[4, 64] x, {name}[64] w) => ({name}[4, 64] y) {{ y = RMSNormalization<epsilon = 1e-6>(x, w) }}"
    result = evaluate(body, {"x": x, "w": w})
    expected = rms_norm(x.double().numpy(), w.double().numpy(), 1e-6)
    rtol = torch.finfo(dtype).eps / 2 + 16 * 2.0**-24
    np.testing.assert_allclose(result.outputs["y"].double().numpy(), expected, rtol=rtol)
    assert result.overflow == ()


DECOMPOSED = """g (float16[4, 64] x, float16[64] w) => (float16[4, 64] y) {
    two32 = Constant<value_float = 2.0>()  ax = Constant<value_ints = [-1]>()  eps32 = Constant<value_float = 1e-6>()
    two = Cast<to=10>(two32)  eps = Cast<to=10>(eps32)
    sq = Pow(x, two)  ms = ReduceMean(sq, ax)  me = Add(ms, eps)  rms = Sqrt(me)  n = Div(x, rms)  y = Mul(n, w) }"""


def test_the_same_norm_written_out_in_halves_overflows(evaluate):
    """What ONNX Runtime on a CPU hides: its squares are infinite and the result is zero."""
    x, w = large(torch.float16), torch.ones(64).half()
    result = evaluate(DECOMPOSED, {"x": x, "w": w})
    first = result.overflow[0]
    assert (first.value, first.kind) == ("sq", "range")
    assert first.count == int((x.double() ** 2 >= 65520).sum())
    assert first.largest == pytest.approx(float((x.double() ** 2).max()))
    assert (result.outputs["y"] == 0).all()
    small = evaluate(DECOMPOSED, {"x": large(torch.float16, 1.0), "w": w})
    assert small.overflow == ()


def test_the_mean_itself_is_rounded_once_from_an_fp32_sum(evaluate):
    """4096 ones summed in fp16 stop at 2048."""
    body = "g (float16[1, 4096] x) => (float16[1, 1] y) { a = Constant<value_ints = [1]>()  y = ReduceSum(x, a) }"
    assert evaluate(body, {"x": torch.ones(1, 4096).half()}).outputs["y"].item() == 4096


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_rms_norm_over_several_axes(evaluate, axis):
    x = torch.randn(2, 3, 5)
    w = torch.randn(x.shape[axis:] if axis >= 0 else 5)
    body = f"""g (float[2, 3, 5] x, float[] w) => (float[2, 3, 5] y)
        {{ y = RMSNormalization<axis = {axis}, epsilon = 1e-3>(x, w) }}"""
    axes = tuple(range(axis % 3, 3))
    expected = (
        x.double()
        / torch.sqrt((x.double() ** 2).mean(axes, keepdim=True) + float(np.float32(1e-3)))
        * w.double()
    )
    actual = evaluate(body, {"x": x, "w": w}).outputs["y"]
    torch.testing.assert_close(actual.double(), expected, rtol=16 * 2.0**-24, atol=1e-9)


def test_rms_norm_of_two_types_rounds_between_as_onnx_says(evaluate):
    """x fp16, scale fp32: the normalised tensor is fp16 before the scale, the result fp32."""
    body = "g (float16[1, 8] x, float[8] w) => (float[1, 8] y) { y = RMSNormalization(x, w) }"
    x, w = large(torch.float16, 3.0, (1, 8)), torch.linspace(1, 2, 8)
    normal = torch.from_numpy(rms_norm(x.double().numpy(), np.ones(8), 1e-5)).half()
    actual = evaluate(body, {"x": x, "w": w}).outputs["y"]
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, normal.float() * w, rtol=2.0**-23, atol=0)


def test_layer_norm_of_halves_and_its_fp32_statistics(evaluate):
    body = """g (float16[4, 64] x, float16[64] w, float16[64] b) => (float16[4, 64] y, float[4, 1] m, float[4, 1] i)
        { y, m, i = LayerNormalization<epsilon = 1e-5>(x, w, b) }"""
    x = large(torch.float16) + 100
    w, b = torch.linspace(0.5, 1.5, 64).half(), torch.linspace(-1, 1, 64).half()
    outputs = evaluate(body, {"x": x, "w": w, "b": b}).outputs
    expected = layer_norm(*(t.double().numpy() for t in (x, w, b)), 1e-5)
    assert [t.dtype for t in outputs.values()] == [torch.float16, torch.float32, torch.float32]
    np.testing.assert_allclose(
        outputs["y"].double().numpy(), expected[0], rtol=2.0**-11 + 1e-6, atol=2.0**-11 * 2
    )
    np.testing.assert_allclose(outputs["m"], expected[1], rtol=1e-5)
    np.testing.assert_allclose(outputs["i"], expected[2], rtol=1e-6)


def test_statistics_in_double_where_stash_type_says_so(evaluate):
    body = """g (double[2, 8] x, double[8] w) => (double[2, 8] y) { y = RMSNormalization<stash_type = 11>(x, w) }"""
    x, w = torch.randn(2, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    expected = rms_norm(x.numpy(), w.numpy(), float(np.float32(1e-5)))
    np.testing.assert_allclose(
        evaluate(body, {"x": x, "w": w}).outputs["y"].numpy(), expected, rtol=1e-14
    )


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_halves_is_fp32_inside(evaluate, name, opset):
    dtype = HALVES[name]
    x = large(dtype, 5.0, (2, 3, 4))
    body = f"g ({name}[2, 3, 4] x) => ({name}[2, 3, 4] y) {{ y = Softmax<axis = 1>(x) }}"
    wide = x.double()
    together = torch.softmax(wide.flatten(1), 1).reshape(
        x.shape
    )  # before opset 13: all axes from 1 on
    expected = together if opset < 13 else torch.softmax(wide, 1)
    actual = (
        evaluate(body, {"x": x}, opset=opset).outputs["y"]
        if name != "bfloat16" or opset >= 13
        else None
    )
    if actual is not None:
        torch.testing.assert_close(
            actual.double(), expected, rtol=torch.finfo(dtype).eps / 2 + 1e-6, atol=2.0**-25
        )


def test_an_axis_that_does_not_exist_is_named(evaluate):
    with pytest.raises(
        UsageError, match=r"node 'Softmax_0' \(Softmax\): axis 3 of a tensor of rank 2"
    ):
        evaluate(
            "g (float[2, 3] x) => (float[2, 3] y) { y = Softmax<axis = 3>(x) }",
            {"x": torch.zeros(2, 3)},
        )
