"""verify finds a graph that is not the module, and says where; near misses of the tolerance pass."""

import onnx_ir as ir
import pytest
import torch
from torch import nn

from blockforge.core.errors import UsageError
from blockforge.export.axes import Axis, Input, named_axes, verify_sizes
from blockforge.export.exact import in_float64
from blockforge.export.verify import TOLERANCE, relative_error, verify
from blockforge.graph.io import save_model

INPUTS = (Input("x", torch.randn(2, 5, 4), {0: Axis("b", 1, 8), 1: Axis("s", 1, 16)}),)
SIZES = verify_sizes(tuple(named_axes(INPUTS).values()))


def check(tmp_path, text: str, module):
    model = ir.from_onnx_text(f'<ir_version: 12, opset_import: ["" : 24]> {text}')
    save_model(model, tmp_path / "m.onnx")
    return verify(tmp_path / "m.onnx", module, INPUTS, SIZES)


SCALED = """g (float[b, s, 4] x) => (float[b, s, 4] y) {{
    c = Constant<value_float = {factor}>()
    y = Mul(x, c)
}}"""


def test_a_right_graph_passes_and_a_rounded_constant_too(tmp_path):
    verified = check(tmp_path, SCALED.format(factor=0.1), lambda x: x * 0.1)
    assert len(verified.sizes) == len(SIZES)
    assert 0 < verified.worst < 1e-7  # 0.1 in float32


@pytest.mark.parametrize(("off", "passes"), [(TOLERANCE / 10, True), (TOLERANCE * 3, False)])
def test_the_tolerance(tmp_path, off: float, passes: bool):
    text = SCALED.format(factor=f"{1 + off:.9f}")
    if passes:
        check(tmp_path, text, lambda x: x)
    else:
        with pytest.raises(UsageError, match="wrong values in output 'y'"):
            check(tmp_path, text, lambda x: x)


STATIC = {
    "length baked into a reshape": (
        """g (float[b, s, 4] x) => (float[b, s, 4] y) {
            shape = Constant<value_ints = [-1, 5, 4]>()
            y = Reshape(x, shape)
        }""",
        lambda x: x.clone(),
        r"'s' = \d+ \(input 'x' axis 1\)",
    ),
    "length baked into a mean": (
        """g (float[b, s, 4] x) => (float[b, 4] y) {
            axis = Constant<value_ints = [1]>()
            n = Constant<value_float = 5.0>()
            total = ReduceSum<keepdims = 0>(x, axis)
            y = Div(total, n)
        }""",
        lambda x: x.mean(1),
        r"'s' = \d+ \(input 'x' axis 1\): wrong values",
    ),
    "batch baked into a slice": (
        """g (float[b, s, 4] x) => (float[b, s, 4] y) {
            zero = Constant<value_ints = [0]>()
            two = Constant<value_ints = [2]>()
            y = Slice(x, zero, two, zero)
        }""",
        lambda x: x.clone(),
        r"'b' = 3 \(input 'x' axis 0\)",
    ),
    "output declared static": (
        """g (float[b, s, 4] x) => (float[b, 5, 4] y) {
            y = Neg(x)
        }""",
        lambda x: -x,
        "'s' = ",
    ),
}


@pytest.mark.parametrize("name", STATIC)
def test_what_is_static_inside_is_found_and_blamed_on_its_axis(tmp_path, name: str):
    text, module, says = STATIC[name]
    with pytest.raises(UsageError, match=says):
        check(tmp_path, text, module)


def test_a_module_that_refuses_a_size_is_to_blame_itself(tmp_path):
    def module(x):
        if x.shape[1] > 9:
            raise ValueError("too long")
        return x

    with pytest.raises(UsageError, match=r"'s' = 16 .*module itself refuses .*too long"):
        check(tmp_path, SCALED.format(factor="1.0"), module)


def test_a_graph_that_is_wrong_where_it_was_traced_says_so(tmp_path):
    with pytest.raises(UsageError, match="at the traced sizes: wrong values"):
        check(tmp_path, SCALED.format(factor="2.0"), lambda x: x)


def test_relative_error():
    nan, inf = float("nan"), float("inf")

    def error(actual: list[float], expected: list[float]) -> float:
        return relative_error(torch.tensor(actual), torch.tensor(expected))

    assert error([1, 2], [1, 2]) == 0 == error([inf, nan], [inf, nan])
    assert error([3, 1], [1, 1]) == 2
    assert error([inf, 1], [-inf, 1]) == inf
    assert error([nan, 1], [1, 1]) == inf == error([1, 1], [nan, 1])
    assert error([1e-9], [0]) == inf
    assert error([], []) == 0


def test_float64_mode_is_a_converted_module_without_the_conversion():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            h = self.linear(x).to(torch.float16).float().softmax(-1)
            return (h * 1000).to(x.dtype), torch.arange(3)

    half = Mixed().half()
    wide = Mixed().double()
    wide.load_state_dict({k: v.double() for k, v in half.state_dict().items()})
    x = torch.randn(4, 16).half()
    with torch.no_grad():
        with in_float64():
            actual, ints = half(x)
            wide_y, _ = wide(x.double())  # the mode lifts its .to(float16), .float() too
        rounded, _ = half(x)
    assert actual.dtype == torch.float64 and ints.dtype == torch.int64
    assert torch.equal(actual, wide_y)
    assert not torch.equal(actual, rounded.double())
    assert half.linear.weight.dtype == torch.float16
