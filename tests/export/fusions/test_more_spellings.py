"""Spellings that take a product, a sum or a division elsewhere, each beside the graph that is spoiled in one place."""

import onnx
import pytest

from blockforge.core.errors import ArtefactError
from blockforge.export.fusions import fuse_file

from .equal import fused, largest_difference
from .graphs import graph, norm, operators

ROPE = """rope (float[b, 2, s, 8] x, float[b, s] p, float[b, 2, s, 8] z) => (float[b, 2, s, 8] y)
<int64[2] at = {{1, 3}}, float[4] f = {{1, 0.5, 0.25, 0.125}}, int64[1] last = {{-1}}, int64[1] before = {{-2}}, int64 zero = {{0}}, int64 one = {{1}},
 int64[1] head = {{1}}, int64[6] columns = {{0, 0, 0, 4, 2, 1}}, int64[6] rows = {{0, 0, 0, 4, 1, 2}}, int64[5] pairs = {{0, 0, 0, 4, 2}}, int64[4] flat = {{0, 0, 0, 8}}> {{
    positions = Unsqueeze(p, at)
    angle = Mul(positions, f)
    c = Cos(angle)
    s_ = Sin(angle)
    minus = {minus}(s_)
    c_ = Unsqueeze(c, last)
    s__ = Unsqueeze(s_, last)
    minus_ = Unsqueeze(minus, last)
    top = Concat <axis = -1> (c_, {top})
    bottom = Concat <axis = -1> ({bottom}, c_)
    top_ = Unsqueeze(top, before)
    bottom_ = Unsqueeze(bottom, before)
    turn = Concat <axis = -2> (top_, bottom_)
    {product}
    y = Reshape(turned, flat)
}}"""
MATRICES = {
    "matrix times column": "view = Reshape(x, columns)\n turned = MatMul(turn, view)",
    "summed product": "view = Reshape(x, rows)\n each = Mul(turn, view)\n turned = ReduceSum <keepdims = 0> (each, last)",
    "einsum": 'view = Reshape(x, pairs)\n own = Squeeze(turn, head)\n turned = Einsum <equation = "bsdij,bhsdj->bhsdi"> (own, view)',
    "columns of the matrix": """view = Reshape(x, rows)
        m0 = Gather <axis = -1> (turn, zero)
        m1 = Gather <axis = -1> (turn, one)
        x0 = Gather <axis = -1> (view, zero)
        x1 = Gather <axis = -1> (view, one)
        p0 = Mul(m0, x0)
        p1 = Mul(m1, x1)
        turned = Add(p0, p1)""",
}
COLUMN = {"minus": "Neg", "top": "minus_", "bottom": "s__"}


@pytest.mark.parametrize("product", MATRICES.values(), ids=MATRICES)
def test_a_rotation_may_be_a_product_of_matrices(product):
    model = graph(ROPE.format(product=product, **COLUMN))
    after, report = fused(model)
    assert report.counts["rope"] == 1
    assert any(
        op in ("RotaryEmbedding", "blockforge::RotaryInterleaved") for op in operators(after)
    )
    assert largest_difference(model, after) < 1e-6
    spoiled = graph(ROPE.format(product=product, **{**COLUMN, "minus": "Identity"}))
    after, report = fused(spoiled)
    assert report.counts["rope"] == 0
    assert "the signs are not those of a rotation" in report.explain()
    assert operators(after) == operators(spoiled)


def test_a_rotation_of_two_tensors_is_none():
    halves = """a, b_ = Split <axis = -1, num_outputs = 2> (x)
        m = Neg(b_)
        half = Concat <axis = -1> (m, a)
        c2 = Concat <axis = -1> (c, c)
        s2 = Concat <axis = -1> (s_, s_)
        xc = Mul({straight}, c2)
        rs = Mul(half, s2)
        turned = Add(xc, rs)"""
    for straight, count in (("x", 1), ("z", 0)):
        model = graph(ROPE.format(product=halves.format(straight=straight), **COLUMN))
        _, report = fused(model)
        assert report.counts["rope"] == count
    assert "the one factor is of z, the other of x" in report.explain()


ATTENTION = """attn (float[b, 4, s, 8] q, float[b, 4, t, 8] k, float[b, 4, t, 8] v, float[b, 1, s, t] mask) => (float[b, 4, s, 8] y)
<float scale = {{0.35}}, float cap = {{30}}, int64[1] last = {{-1}}, int64[1] before = {{-2}}> {{
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    qt = Transpose <perm = [0, 1, 3, 2]> (q)
    raw = MatMul(q, kt)
    scores = Mul(raw, scale)
    raw_t = MatMul(k, qt)
    scores_t = Mul(raw_t, scale)
    {rest}
}}"""
POWER = "peak = ReduceMax(scores, last)\n low = Sub(scores, peak)\n e = Exp(low)\n"
WHOLE = {
    "divided after the values": (
        POWER + "n = ReduceSum(e, last)\n ev = MatMul(e, v)\n y = Div(ev, n)",
        "Attention",
    ),
    "times a reciprocal after the values": (
        POWER + "n = ReduceSum(e, last)\n i = Reciprocal(n)\n ev = MatMul(e, v)\n y = Mul(i, ev)",
        "Attention",
    ),
    "times a reciprocal": (
        POWER + "n = ReduceSum(e, last)\n i = Reciprocal(n)\n w = Mul(e, i)\n y = MatMul(w, v)",
        "Attention",
    ),
    "a sum without its axis": (
        POWER
        + "m = ReduceSum <keepdims = 0> (e, last)\n n = Unsqueeze(m, last)\n w = Div(e, n)\n y = MatMul(w, v)",
        "Attention",
    ),
    "not shifted": (
        "e = Exp(scores)\n n = ReduceSum(e, last)\n ev = MatMul(e, v)\n y = Div(ev, n)",
        "blockforge::Attention",
    ),
    "keys by queries": (
        "w = Softmax <axis = -2> (scores_t)\n wt = Transpose <perm = [0, 1, 3, 2]> (w)\n y = MatMul(wt, v)",
        "Attention",
    ),
    "keys by queries, values in front": (
        "w = Softmax <axis = 2> (scores_t)\n vt = Transpose <perm = [0, 1, 3, 2]> (v)\n yt = MatMul(vt, w)\n y = Transpose <perm = [0, 1, 3, 2]> (yt)",
        "Attention",
    ),
    "keys by queries, einsum": (
        'w = Softmax <axis = -2> (scores_t)\n y = Einsum <equation = "bhts,bhtd->bhsd"> (w, v)',
        "Attention",
    ),
    "a mask below the softcap": (
        "m = Add(scores, mask)\n d = Div(m, cap)\n h = Tanh(d)\n c = Mul(h, cap)\n w = Softmax <axis = -1> (c)\n y = MatMul(w, v)",
        "blockforge::AttentionSoftcap",
    ),
}


@pytest.mark.parametrize(("rest", "operator"), WHOLE.values(), ids=WHOLE)
def test_other_orders_of_an_attention(rest, operator):
    model = graph(ATTENTION.format(rest=rest))
    after, report = fused(model)
    assert report.counts["attn"] == 1
    assert operator in operators(after)
    assert largest_difference(model, after) < 1e-6


SPOILED = {
    "another axis": ("w = Softmax <axis = -2> (scores)\n y = MatMul(w, v)", "over the keys"),
    "a mask after it": (
        "w = Softmax <axis = -1> (scores)\n m = Add(w, mask)\n y = MatMul(m, v)",
        "changes the weights after the softmax",
    ),
    "the sum of the columns": (
        POWER + "n = ReduceSum(e, before)\n w = Div(e, n)\n y = MatMul(w, v)",
        "over the keys",
    ),
    "the sum of other powers": (
        POWER + "o = Exp(scores)\n n = ReduceSum(o, last)\n ev = MatMul(e, v)\n y = Div(ev, n)",
        "",
    ),
}


@pytest.mark.parametrize(("rest", "reason"), SPOILED.values(), ids=SPOILED)
def test_what_is_no_attention(rest, reason):
    model = graph(ATTENTION.format(rest=rest))
    after, report = fused(model)
    assert report.counts["attn"] == 0
    assert reason in report.explain()
    assert operators(after) == operators(model)


GATE = """gate (float[b, s, 8] g, float[b, s, 8] u) => (float[b, s, 8] y) <float one = {{1}}> {{
    minus = Neg(g)
    {rest}
}}"""


@pytest.mark.parametrize(
    ("rest", "counts"),
    [
        ("s_ = Sigmoid(g)\n us = Mul(u, s_)\n y = Mul(us, g)", (1, 1)),
        ("s_ = Sigmoid(minus)\n o = Sub(one, s_)\n a = Mul(g, o)\n y = Mul(a, u)", (1, 1)),
        ("s_ = Sigmoid(minus)\n a = Mul(g, s_)\n y = Mul(a, u)", (0, 0)),
        ("s_ = Sigmoid(u)\n us = Mul(u, s_)\n y = Mul(us, minus)", (1, 1)),
        ("s_ = Sigmoid(g)\n us = Mul(u, s_)\n o = Add(us, one)\n y = Mul(o, g)", (0, 0)),
    ],
    ids=["up first", "one minus sigmoid", "sigmoid of -x", "the other operand", "shifted between"],
)
def test_other_orders_of_a_gate(rest, counts):
    model = graph(GATE.format(rest=rest))
    after, report = fused(model)
    assert (report.counts["glu"], report.counts["act"]) == counts
    assert largest_difference(model, after) < 1e-6


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("low = Sub(mean, eps)\n rms = Sqrt(low)", "the epsilon -1e-05 is negative"),
        (
            "a = Add(mean, eps)\n h = Constant <value_float = 0.49> ()\n rms = Pow(a, h)",
            "the power -0.49 of the mean of squares, not -1/2",
        ),
        (
            "a = Add(mean, eps)\n l = Log(a)\n zero = Constant <value_float = 0.0> ()\n m = Max(l, zero)\n h = Constant <value_float = 0.5> ()\n k = Mul(m, h)\n rms = Exp(k)",
            "",
        ),
    ],
    ids=["a negative epsilon", "nearly a root", "a bounded logarithm"],
)
def test_what_is_no_root(root, reason):
    model = norm(root=root)
    after, report = fused(model)
    assert report.counts["rms"] == 0
    assert reason in report.explain()
    assert operators(after) == operators(model)


def test_a_circle_is_one_error(tmp_path):
    model = graph("g (float[b, 8] x) => (float[b, 8] y) { a = Neg(x)\n y = Mul(a, x) }")
    model.graph.node[0].input[0] = "y"
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(ArtefactError, match="in a circle"):
        fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_ones_that_no_machine_holds_are_not_written(tmp_path):
    model = norm()
    model.graph.node.pop()
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[2].dim_value = 2**40
    model.graph.output[0].name = "unit"
    onnx.save(model, tmp_path / "in.onnx")
    report = fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.counts["rms"] == 1
    assert operators(onnx.load(tmp_path / "out.onnx")) == ["blockforge::RMSNormAsWritten"]
    assert report.notes == ["not verified: the evaluator cannot run the file"]
