"""What the underflow report counts: numbers that rounding made zero, and no others."""

import torch

from blockforge.graph.evaluator import Underflow

SMALLEST = 2.0**-24  # the smallest fp16 number above zero


def test_products_below_the_smallest_half_are_counted(evaluate):
    body = "g (float16[4] x) => (float16[4] y) { y = Mul(x, x) }"
    x = torch.tensor([1.0, 1e-4, -1e-4, 0.0]).half()
    result = evaluate(body, {"x": x})
    assert result.underflow == (Underflow("y", "Mul_0", 2, 4),)  # 0 * 0 lost nothing
    assert result.outputs["y"].tolist() == [1, 0, 0, 0]


def test_near_miss_half_of_the_smallest_number(evaluate):
    """A tie goes to the even zero; anything above it is kept."""
    body = "g (float[2] x) => (float16[2] y) { y = Cast<to=10>(x) }"
    above = torch.tensor([SMALLEST * 0.501, -SMALLEST * 0.501])
    assert evaluate(body, {"x": above}).underflow == ()
    (lost,) = evaluate(body, {"x": torch.tensor([SMALLEST / 2, 1.0])}).underflow
    assert (lost.value, lost.count, lost.elements) == ("y", 1, 2)


def test_fp8_flushes_what_its_scale_makes_too_small(evaluate):
    body = """g (float[4] x, float s) => (float8e4m3fn[4] y) { y = QuantizeLinear<output_dtype = 17>(x, s) }"""
    x = torch.tensor([1.0, 2.0**-9, 2.0**-11, 0.0])  # the smallest e4m3 number is 2^-9
    feeds = {"x": x, "s": torch.tensor(1.0)}
    assert [(u.count, u.elements) for u in evaluate(body, feeds).underflow] == [(1, 4)]
    assert evaluate(body, feeds | {"s": torch.tensor(2.0**-3)}).underflow == ()


def test_wider_types_and_exact_numbers_lose_nothing(evaluate):
    tiny = torch.tensor([1e-30, 1e-4])
    for body in (
        "g (float[2] x) => (float[2] y) { y = Mul(x, x) }",
        "g (float[2] x) => (bfloat16[2] y) { y = Cast<to=16>(x) }",
    ):
        assert evaluate(body, {"x": tiny * 1e3}).underflow == ()
    body = "g (float16[2] x) => (float16[2] y) { y = Mul(x, x) }"
    assert evaluate(body, {"x": tiny.half()}, exact=True).underflow == ()


def test_an_overflow_beside_it_does_not_hide_it(evaluate):
    body = "g (float16[3] x) => (float16[3] y) { y = Mul(x, x) }"
    result = evaluate(body, {"x": torch.tensor([300.0, 1e-4, 1.0]).half()})
    assert len(result.overflow) == 1 and [u.count for u in result.underflow] == [1]
