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


VARIANCE = """norm (float[b, s, 8] x, float[b, s, 8] z) => (float[b, s, 8] y)
<int64[1] last = {{-1}}, float eps = {{0.00001}}, float ratio = {{{ratio}}}> {{
    mean = ReduceMean(x, last)
    centred = Sub(x, mean)
    square = Mul(centred, centred)
    sum = ReduceSum(square, last)
    variance = Mul(sum, ratio)
    other = ReduceMean({mean_of}, last)
    added = {added}
    whole = Add(variance, added)
    shifted = Add(whole, eps)
    root = Sqrt(shifted)
    y = Div(x, root)
}}"""


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({}, 1),
        ({"mean_of": "z"}, 0),
        ({"added": "Identity(other)"}, 0),
        ({"ratio": "0.142857142857"}, 0),  # over n - 1
    ],
    ids=["its own mean, squared", "the mean of another", "not squared", "an unbiased variance"],
)
def test_variance_plus_squared_mean_is_a_mean_of_squares(change, count):
    parts = {"mean_of": "x", "added": "Mul(other, other)", "ratio": "0.125", **change}
    model = graph(VARIANCE.format(**parts))
    after, report = fused(model)
    assert report.counts["rms"] == count
    assert ("RMSNormalization" in operators(after)) == bool(count)
    assert largest_difference(model, after) < 1e-6


ASSIGNED = """rope (float[b, 2, s, 4] x, float[b, s] p) => (float[b, 2, s, 4] y)
<float nothing = {{0}}, int64[2] at = {{1, 3}}, float[2] f = {{1, 0.5}}, int64[2, 1] one = {{0, 1}}, int64[2, 1] two = {{{places}}}> {{
    positions = Unsqueeze(p, at)
    angle = Mul(positions, f)
    c = Cos(angle)
    s_ = Sin(angle)
    a, b_ = Split <axis = -1, num_outputs = 2> (x)
    ac = Mul(a, c)
    bs = Mul(b_, s_)
    first = Sub(ac, bs)
    as_ = Mul(a, s_)
    bc = Mul(b_, c)
    second = Add(as_, bc)
    like = Shape(x)
    base = Expand(nothing, like)
    base_t = Transpose <perm = [3, 1, 2, 0]> (base)
    first_t = Transpose <perm = [3, 1, 2, 0]> (first)
    half_t = ScatterND(base_t, one, first_t)
    half = Transpose <perm = [3, 1, 2, 0]> (half_t)
    again_t = Transpose <perm = [3, 1, 2, 0]> (half)
    second_t = Transpose <perm = [3, 1, 2, 0]> (second)
    whole_t = ScatterND(again_t, two, second_t)
    y = Transpose <perm = [3, 1, 2, 0]> (whole_t)
}}"""


@pytest.mark.parametrize(
    ("places", "count"),
    [("2, 3", 1), ("1, 2", 0), ("3, 2", 0)],
    ids=["the other half", "over the first half", "backwards"],
)
def test_a_rotation_may_be_assigned_by_halves(places, count):
    model = graph(ASSIGNED.format(places=places))
    after, report = fused(model)
    assert report.counts["rope"] == count
    assert largest_difference(model, after) < 1e-6


WIDE_TABLES = """rope (float[b, 4, s, 8] x, float[b, s] p) => (float[b, 4, s, 8] y)
<int64[2] at = {1, 3}, float[4] f = {1, 0.5, 0.25, 0.125}, int64[1] last = {-1}, int64[1] axis = {4},
 int64[5] pairs = {0, 4, -1, 4, 2}, int64[4] flat = {0, 4, -1, 8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
    positions = Unsqueeze(p, at)
    angle = Mul(positions, f)
    c = Cos(angle)
    s_ = Sin(angle)
    c_narrow = Unsqueeze(c, last)
    s_narrow = Unsqueeze(s_, last)
    c_wide = Concat <axis = -1> (c_narrow, c_narrow)
    s_wide = Concat <axis = -1> (s_narrow, s_narrow)
    view = Reshape(x, pairs)
    a = Slice(view, zero, one, axis)
    b_ = Slice(view, one, two, axis)
    minus = Neg(b_)
    quarter = Concat <axis = -1> (minus, a)
    straight = Mul(view, c_wide)
    across = Mul(quarter, s_wide)
    turned = Add(straight, across)
    y = Reshape(turned, flat)
}"""


def test_tables_of_pairs_are_laid_out_in_one_axis():
    model = graph(WIDE_TABLES)
    after, report = fused(model)
    assert report.counts["rope"] == 1
    assert "RotaryEmbedding" in operators(after)
    assert largest_difference(model, after) < 1e-6
