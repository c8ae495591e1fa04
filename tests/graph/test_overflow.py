"""What the overflow report says, and that it says nothing about a graph that behaves."""

import pytest
import torch

from blockforge.graph.evaluator import Overflow


def test_numbers_beyond_the_range_are_counted_with_their_size(evaluate):
    body = "g (float16[4] x) => (float16[4] y) { y = Mul(x, x) }"
    result = evaluate(body, {"x": torch.tensor([1.0, 300.0, -400.0, 255.875]).half()})
    assert result.overflow == (Overflow("y", "Mul_0", 2, 160000.0, "range"),)
    assert result.outputs["y"].isinf().tolist() == [False, True, True, False]


def test_near_miss_the_largest_half(evaluate):
    """65519.99 rounds down to 65504, 65520 rounds to infinity."""
    body = "g (float[2] x) => (float16[2] y) { y = Cast<to=10>(x) }"
    fits = torch.tensor([65519.996, -65519.996])
    assert evaluate(body, {"x": fits}).overflow == ()
    assert evaluate(body, {"x": fits}).largest["y"] == pytest.approx(65519.996)
    (event,) = evaluate(body, {"x": torch.tensor([65520.0, 1.0])}).overflow
    assert (event.value, event.count, event.kind) == ("y", 1, "range")


def test_bf16_range(evaluate):
    body = "g (float[2] x) => (bfloat16[2] y) { y = Cast<to=16>(x) }"
    assert evaluate(body, {"x": torch.tensor([3.3961e38, 1.0])}).overflow == ()
    assert len(evaluate(body, {"x": torch.tensor([3.4e38, 1.0])}).overflow) == 1


def test_infinity_from_finite_inputs(evaluate):
    body = "g (float[2] x) => (float[2] y) { y = Log(x) }"
    (event,) = evaluate(body, {"x": torch.tensor([0.0, 1.0])}).overflow
    assert (event.kind, event.count, event.largest) == ("infinite", 1, 0.0)


def test_infinities_that_were_given_are_not_reported(evaluate):
    """An additive mask of -inf is no overflow, in any of the operators it passes through."""
    body = """g (float16[1, 4] s, float16[1, 4] m) => (float16[1, 4] y) {
        a = Add(s, m)  b = Add(a, m)  y = Softmax(b) }"""
    mask = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf]]).half()
    result = evaluate(body, {"s": torch.randn(1, 4).half(), "m": mask})
    assert result.overflow == ()
    assert result.outputs["y"][0, 2:].tolist() == [0, 0]


def test_a_row_masked_throughout_is_a_nan_where_it_arises(evaluate):
    body = """g (float16[2, 2] s, float16[2, 2] m) => (float16[2, 2] y) {
        a = Add(s, m)  p = Softmax(a)  y = Mul(p, p) }"""
    mask = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]).half()
    (event,) = evaluate(body, {"s": torch.ones(2, 2).half(), "m": mask}).overflow
    assert (event.value, event.kind, event.count) == ("p", "nan", 2)


def test_an_overflow_beside_given_infinities_is_found(evaluate):
    body = "g (float16[3] x) => (float16[3] y) { y = Add(x, x) }"
    (event,) = evaluate(body, {"x": torch.tensor([torch.inf, 60000.0, 1.0]).half()}).overflow
    assert (event.kind, event.count, event.largest) == ("range", 1, 120000.0)


def test_saturation_of_fp8_is_its_own_kind(evaluate):
    body = """g (float[3] x, float s) => (float8e4m3fn[3] y) { y = QuantizeLinear<output_dtype = 17>(x, s) }"""
    x = torch.tensor([100.0, 1000.0, -500.0])
    (event,) = evaluate(body, {"x": x, "s": torch.tensor(1.0)}).overflow
    assert (event.kind, event.count, event.largest) == ("saturated", 2, 1000.0)
    assert evaluate(body, {"x": x, "s": torch.tensor(4.0)}).overflow == ()


def test_masks_of_the_smallest_fp32_number_do_not_fit_fp16(evaluate):
    """A graph that casts its finfo(float32).min mask to fp16 has -inf there; the report names the cast."""
    body = """g (float[1, 3] m, float16[1, 3] s) => (float16[1, 3] y) {
        h = Cast<to=10>(m)  a = Add(s, h)  y = Softmax(a) }"""
    mask = torch.tensor([[0.0, torch.finfo(torch.float32).min, torch.finfo(torch.float32).min]])
    result = evaluate(body, {"m": mask, "s": torch.zeros(1, 3).half()})
    assert [(e.value, e.kind, e.count) for e in result.overflow] == [("h", "range", 2)]
    assert result.outputs["y"].tolist() == [[1, 0, 0]]


def test_two_masks_of_the_smallest_half_overflow_together(evaluate):
    """-65504 - 40 rounds to -inf: a row that both masks cover becomes NaN."""
    body = """g (float16[2, 2] s, float16[2, 2] m, float16[2, 2] p) => (float16[2, 2] y) {
        a = Add(s, m)  b = Add(a, p)  y = Softmax(b) }"""
    low = torch.full((2, 2), -65504.0).half()
    keep = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).half()
    feeds = {"s": torch.full((2, 2), -40.0).half(), "m": low * keep, "p": low * keep}
    result = evaluate(body, feeds)
    assert [(e.value, e.kind) for e in result.overflow] == [("a", "range"), ("y", "nan")]
    assert result.outputs["y"][1].isnan().all()


def test_exact_numbers_do_not_overflow_where_halves_would(evaluate):
    body = "g (float16[2] x) => (float16[2] y) { y = Mul(x, x) }"
    result = evaluate(body, {"x": torch.tensor([300.0, 1.0]).half()}, exact=True)
    assert result.overflow == ()
    assert result.outputs["y"].tolist() == [90000, 1]


def test_integers_too_large_for_a_half(evaluate):
    body = "g (int64[2] x) => (float16[2] y) { y = Cast<to=10>(x) }"
    (event,) = evaluate(body, {"x": torch.tensor([70000, 1])}).overflow
    assert (event.count, event.largest) == (1, 70000)
