"""What looks like an operator and is not stays as it is, and the report names the reason and the node."""

import pytest

from .equal import fused, largest_difference
from .graphs import INSIDE, OUTSIDE, graph, norm, operators

NEAR = {
    "another axis": (norm(axis="1"), "lies along other axes", "n4"),
    "a sum": (norm(reduce="ReduceSum"), "scaled by 0.353553", "n4"),
    "cubes": (norm(power="3.0"), "power 3", "n4"),
    "another tensor": (norm(numerator="z"), "the statistics are of x, the product is with z", "n4"),
    "the mean is an output": (
        norm(outputs="float[b, s, 8] y, float[b, s, 1] mean"),
        "the inner value mean is a graph output",
        "n5",
    ),
}


@pytest.mark.parametrize(("model", "reason", "node"), NEAR.values(), ids=NEAR)
def test_near_misses_of_rms_norm_are_left_alone(model, reason, node):
    after, report = fused(model)
    assert report.counts["rms"] == report.counts["ln"] == 0
    assert operators(after) == operators(model)
    assert [r.node for r in report.refused] == [node]
    assert reason in report.refused[0].reason
    assert reason in report.explain()


def test_a_weight_over_a_part_of_the_axes_is_left_alone():
    model = graph(
        """norm (float[b, s, 8] x) => (float[b, s, 8] y)
        <int64[2] axes = {1, 2}, float eps = {0.00001}, float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            square = Mul(x, x)
            mean = ReduceMean(square, axes)
            shifted = Add(mean, eps)
            rms = Sqrt(shifted)
            unit = Div(x, rms)
            y = Mul(unit, w)
        }"""
    )
    after, report = fused(model)
    assert operators(after) == operators(model)
    assert "only a part of the axes" in report.refused[0].reason


def test_a_vector_epsilon_is_left_alone():
    model = norm(root="shifted = Add(mean, w)\n rms = Sqrt(shifted)")
    after, report = fused(model)
    assert report.counts["rms"] == 0
    assert "w is a tensor, not one number" in report.refused[0].reason
    assert operators(after) == operators(model)


def test_an_epsilon_outside_the_root_is_no_standard_operator():
    model = norm(root=OUTSIDE)
    after, report = fused(model)
    assert operators(after) == ["blockforge::RMSNormEpsilonOutside"]
    assert report.counts["rms"] == 1
    assert largest_difference(model, after) == 0


def test_the_root_may_be_read_elsewhere():
    model = norm(outputs="float[b, s, 8] y, float[b, s, 1] rms")
    after, report = fused(model)
    assert operators(after) == ["blockforge::RMSNormWithRoot"]
    assert [o.name for o in after.graph.output] == ["y", "rms"]
    assert report.counts["rms"] == 1
    assert largest_difference(model, after) == 0


@pytest.mark.parametrize("epsilon", ["0.00001", "0.000000000001", "0.0"])
def test_an_epsilon_survives(epsilon):
    model = norm(epsilon=epsilon, root=INSIDE)
    after, _ = fused(model)
    (node,) = after.graph.node
    assert node.op_type == "RMSNormalization"
    kept = next(a.f for a in node.attribute if a.name == "epsilon")
    assert kept == pytest.approx(float(epsilon), rel=1e-7)  # both float32
    assert largest_difference(model, after) < 1e-7


GATE = """gate (float[b, s, 8] g, float[b, s, {width}] u, float[b, s, 8] z) => (float[b, s, 8] y{more}) {{
    sigmoid = Sigmoid({argument})
    act = Mul(g, sigmoid)
    y = Mul(act, u)
}}"""


def test_a_gate_of_another_width_is_no_gate():
    model = graph(GATE.format(width=1, argument="g", more=""))
    after, report = fused(model)
    assert report.counts["glu"] == 0
    assert report.counts["act"] == 1
    assert operators(after) == ["blockforge::SiLU", "Mul"]


def test_a_sigmoid_of_another_tensor_is_no_silu():
    model = graph(GATE.format(width=8, argument="z", more=""))
    after, report = fused(model)
    assert report.counts["act"] == 0
    assert operators(after) == operators(model)


def test_an_activation_read_elsewhere_is_no_gate():
    model = graph(GATE.format(width=8, argument="g", more=", float[b, s, 8] act"))
    after, report = fused(model)
    assert report.counts["glu"] == 0
    assert any("act is a graph output" in r.reason for r in report.refused)
    assert operators(after) == ["blockforge::SiLU", "Mul"]
    assert largest_difference(model, after) < 1e-7


@pytest.mark.parametrize(
    ("mean_of", "axis", "expected"),
    [
        ("x", "-1", ["LayerNormalization"]),
        ("z", "-1", ["ReduceMean", "Sub", "RMSNormalization"]),
        ("x", "1", ["ReduceMean", "Sub", "RMSNormalization"]),
    ],
    ids=["its own mean", "the mean of another", "the mean over another axis"],
)
def test_only_a_tensor_minus_its_own_mean_is_centred(mean_of, axis, expected):
    model = graph(
        f"""norm (float[b, s, 8] x, float[b, s, 8] z) => (float[b, s, 8] y)
        <int64[1] last = {{-1}}, int64[1] axis = {{{axis}}}, float eps = {{0.00001}}> {{
            mean = ReduceMean({mean_of}, axis)
            centred = Sub(x, mean)
            square = Mul(centred, centred)
            variance = ReduceMean(square, last)
            shifted = Add(variance, eps)
            root = Sqrt(shifted)
            y = Div(centred, root)
        }}"""
    )
    after, _ = fused(model)
    assert operators(after) == expected
    assert largest_difference(model, after) < 1e-7
