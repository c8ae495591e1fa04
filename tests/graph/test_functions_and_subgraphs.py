"""Local functions and the subgraphs of If, Loop and Scan."""

import onnx_ir as ir
import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.graph.evaluator import TypedEvaluator


def parsed(body: str, domains: str = "", functions: str = "") -> ir.Model:
    """A model of opset 24 from ONNX text."""
    return ir.from_onnx_text(
        f'<ir_version: 11, opset_import: ["" : 24{domains}]> {body} {functions}'
    )


SWIGLU = """<domain: "blockforge", opset_import: ["" : 24]> SwiGLU <alpha: float = 1.0> (gate, up) => (y)
    { s = Swish<alpha: float = @alpha>(gate)  y = Mul(s, up) }"""


def test_function_bodies_run_with_their_attributes_and_round_inside():
    model = parsed(
        """g (float16[8] a, float16[8] b) => (float16[8] y, float16[8] z)
        { y = blockforge.SwiGLU(a, b)  z = blockforge.SwiGLU<alpha = 1.702>(a, b) }""",
        domains=', "blockforge" : 1',
        functions=SWIGLU,
    )
    a, b = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).half() * 4
    result = TypedEvaluator(model).run({"a": a, "b": b}, keep=("SwiGLU_0/s",))
    for name, alpha in (("y", 1.0), ("z", 1.702)):
        swish = (a.double() * torch.sigmoid(alpha * a.double())).half()
        assert torch.equal(result.outputs[name], (swish.double() * b.double()).half())
    assert result.kept["SwiGLU_0/s"].dtype == torch.float16
    assert set(result.largest) == {"SwiGLU_0/s", "SwiGLU_0/y", "SwiGLU_1/s", "SwiGLU_1/y"}


def test_functions_call_functions_and_bring_their_own_opset():
    model = parsed(
        "g (float[2, 3] x) => (float[2, 3] y) { y = other.Outer(x) }",
        domains=', "other" : 1',
        functions="""
        <domain: "other", opset_import: ["" : 24, "other" : 1]> Outer (a) => (b) { c = other.Inner(a)  b = Neg(c) }
        <domain: "other", opset_import: ["" : 11]> Inner (a) => (b) { b = Softmax(a) }""",
    )
    x = torch.randn(2, 3)
    # Softmax of opset 11 works on all axes from 1 on; for a matrix that is the last one
    torch.testing.assert_close(
        TypedEvaluator(model).run({"x": x}).outputs["y"], -torch.softmax(x, 1)
    )


def test_a_function_that_calls_itself_is_refused():
    model = parsed(
        "g (float[1] x) => (float[1] y) { y = other.F(x) }",
        domains=', "other" : 1',
        functions='<domain: "other", opset_import: ["other" : 1]> F (a) => (b) { b = other.F(a) }',
    )
    with pytest.raises(UsageError, match="it calls itself"):
        TypedEvaluator(model)


# --- subgraphs ---


def test_if_sees_outer_values_and_runs_one_branch():
    body = """g (bool c, float16[2] x) => (float16[2] y) {
        h = Neg(x)
        y = If(c) <then_branch = t () => (float16[2] a) { a = Add(h, x) },
                   else_branch = e () => (float16[2] b) { b = Mul(h, x) }>
    }"""
    evaluator = TypedEvaluator(parsed(body))
    x = torch.tensor([3.0, -5.0]).half()
    assert evaluator.run({"c": torch.tensor(True), "x": x}).outputs["y"].tolist() == [0, 0]
    assert evaluator.run({"c": torch.tensor(False), "x": x}).outputs["y"].tolist() == [-9, -25]


LOOP = """g (int64 n, float16[2] x) => (float16[2] last, float16[K, 2] all) {
    go = Constant<value = bool {1}>()
    last, all = Loop(n, go, x) <body = b (int64 i, bool c, float16[2] s) => (bool d, float16[2] t, float16[2] u) {
        d = Identity(c)  t = Add(s, x)  u = Neg(t) }>
}"""


def test_loop_carries_and_stacks(evaluate):
    x = torch.tensor([1.0, 2.0]).half()
    result = evaluate(LOOP, {"n": torch.tensor(3), "x": x}, keep=("t",))
    assert result.outputs["last"].tolist() == [4, 8]
    assert result.outputs["all"].tolist() == [[-2, -4], [-3, -6], [-4, -8]]
    assert result.kept["t"].tolist() == [4, 8]  # of the last iteration
    none = evaluate(LOOP, {"n": torch.tensor(0), "x": x}).outputs
    assert none["last"].tolist() == [1, 2]
    assert none["all"].shape == (0, 2)
    assert none["all"].dtype == torch.float16


def test_loop_overflow_adds_up_over_iterations(evaluate):
    x = torch.tensor([30000.0, 1.0]).half()
    (event, *_) = evaluate(LOOP, {"n": torch.tensor(4), "x": x}).overflow
    assert (event.value, event.kind, event.count) == (
        "t",
        "range",
        1,
    )  # 90000, once: then the input is infinite
    assert event.largest == 90000


def test_scan_runs_backwards_over_an_axis(evaluate):
    body = """g (float[2] s, float[2, 3] x) => (float[2] last, float[3, 2] all) {
        last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            body = b (float[2] a, float[2] e) => (float[2] c, float[2] d) { c = Add(a, e)  d = Identity(c) }> (s, x)
    }"""
    x = torch.tensor([[1.0, 2, 3], [10, 20, 30]])
    outputs = evaluate(body, {"s": torch.zeros(2), "x": x}).outputs
    assert outputs["last"].tolist() == [6, 60]
    assert outputs["all"].tolist() == [[3, 30], [5, 50], [6, 60]]
