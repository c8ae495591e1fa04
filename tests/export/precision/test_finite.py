"""Numbers that are not finite: refused in what is fed, let pass where they hide scores, named anywhere else."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.errors import UsageError
from blockforge.export.precision import measure_ranges, typed_model

from .runs import FP16, prepared, typed

S, FLOAT = 4, TensorProto.FLOAT
X = torch.randn(2, S, S, generator=torch.Generator().manual_seed(0))
EYE = np.eye(S, dtype=np.float32)
HIDE = np.where(np.triu(np.ones((S, S)), 1) > 0, -np.inf, 0).astype(np.float32)
WHOLE = np.where(np.arange(S)[:, None] == 1, -np.inf, HIDE).astype(np.float32)  # and all of row 1


def graph(nodes, weights=(), inputs=("x",), outputs=("y",)) -> onnx.ModelProto:
    """Inputs [b, 4, 4] -> nodes -> outputs [b, 4, 4]."""
    made = helper.make_graph(
        [helper.make_node(op, i, o, name=f"{o[0]}/{op}", **a) for op, i, o, a in nodes],
        "g",
        [helper.make_tensor_value_info(n, FLOAT, ["b", S, S]) for n in inputs],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in dict(weights).items()]
        + [numpy_helper.from_array(np.array([1], np.int64), "heads")],
    )
    opset = [helper.make_opsetid("", 23)]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(made, opset_imports=opset, ir_version=11)
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def attention(mask_from="m"):
    """Spelled out: x W + mask -> softmax -> W."""
    return [
        ("MatMul", ["x", "w"], ["raw"], {}),
        ("Add", ["raw", mask_from], ["t"], {}),
        ("Softmax", ["t"], ["p"], {"axis": -1}),
        ("MatMul", ["p", "w"], ["y"], {}),
    ]


LINEAR = [("MatMul", ["x", "w"], ["y"], {})]
MASKED = [
    ("Identity", ["m"], ["m1"], {}),
    ("Add", ["m1", "m1"], ["m2"], {}),
    *attention("m2"),
]
OPERATOR = [
    ("MatMul", ["x", "w"], ["q"], {}),
    ("Unsqueeze", ["m", "heads"], ["apart"], {}),
    ("Attention", ["q", "q", "q", "apart"], ["y"], {"q_num_heads": 1, "kv_num_heads": 1}),
]
READ_ELSEWHERE = [*attention(), ("MatMul", ["m", "w"], ["z"], {})]


def planted(number):
    x = X.clone()
    x[1, 2, 3] = number
    return x


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whole", [True, False])
def test_an_input_that_is_not_finite_is_refused(number, whole):
    model = prepared(graph(LINEAR, {"w": EYE}))
    bad = torch.full_like(X, number) if whole else planted(number)
    with pytest.raises(UsageError) as refused:
        measure_ranges(model, [{"x": X}, {"x": bad}])
    assert refused.value.asked == "calibration input 'x', feed 2 of 2"
    count, kind = X.numel() if whole else 1, "NaN" if np.isnan(number) else "infinite"
    assert f"{count} of its {X.numel()} numbers" in refused.value.found
    assert f"{count} {kind}" in refused.value.found


@pytest.mark.parametrize(
    ("nodes", "number", "refused"),
    [
        (attention(), -np.inf, False),
        (MASKED, -np.inf, False),
        (OPERATOR, -np.inf, False),
        (attention(), np.inf, True),
        (attention(), np.nan, True),
        (READ_ELSEWHERE, -np.inf, True),
    ],
)
def test_a_fed_mask_may_hide_and_nothing_else(nodes, number, refused):
    outputs = ("y", "z") if nodes is READ_ELSEWHERE else ("y",)
    proto = graph(nodes, {"w": EYE}, ("x", "m"), outputs)
    feeds = {"x": X, "m": torch.zeros(2, S, S)}
    feeds["m"][0, 0, 1] = number
    if refused:
        with pytest.raises(UsageError, match="calibration input 'm', feed 1 of 1"):
            measure_ranges(prepared(proto), [feeds])
        return
    _, report, run = typed(proto, feeds)
    assert report.nonfinite == [] and report.unproved == []
    assert torch.isfinite(run.outputs["y"]).all()


SQRT = [("Sqrt", ["x"], ["r"], {}), ("MatMul", ["r", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})]
RECIPROCAL = [("Relu", ["x"], ["r"], {}), ("Reciprocal", ["r"], ["i"], {}), ("MatMul", ["i", "w"], ["y"], {})]  # fmt: skip
OVERFLOW = [("MatMul", ["x", "big"], ["h"], {}), ("MatMul", ["h", "big"], ["y"], {})]
TIMES = [("Mul", ["x", "m"], ["y"], {})]  # 0 * -inf
NOT_ONLY_MASK = [("Add", ["x", "m"], ["t"], {}), ("Relu", ["t"], ["r"], {}), ("MatMul", ["t", "w"], ["y"], {})]  # fmt: skip
BIG = 1e25 * EYE


@pytest.mark.parametrize(
    ("nodes", "feed", "cause", "kind", "first", "behind", "unproved"),
    [
        (SQRT, X, "r", "nan", 2, {"r", "h", "y"}, {"r", "h", "y"}),
        (RECIPROCAL, X, "i", "infinite", 2, {"i", "y"}, {"i", "y"}),
        (OVERFLOW, X, "y", "infinite", 1, {"y"}, set()),  # in FP32 anyway
        (TIMES, torch.zeros_like(X), "y", "nan", 2, {"y"}, {"y"}),
        (NOT_ONLY_MASK, X, "y", "nan", 1, {"y"}, {"y"}),
    ],
)
def test_a_value_that_is_not_finite_is_named_and_has_no_range(
    nodes, feed, cause, kind, first, behind, unproved
):
    proto = graph(nodes, {"w": EYE, "m": HIDE, "big": BIG})
    model = prepared(proto)
    ranges = measure_ranges(model, [{"x": X.abs() + 1}, {"x": feed}])
    report = typed_model(model, ranges, FP16)
    (row,) = report.nonfinite
    assert row.value == cause and getattr(row, kind) > 0 and row.node.startswith(f"{cause}/")
    assert row.feed == first
    assert {name.split("/")[0] for name in report.unproved} == unproved
    assert {r.value.split("/")[0] for r in report.headroom}.isdisjoint(behind)
    assert str(row).startswith(f"{cause} (node {cause}/") and "range is unknown" in str(row)


def test_what_was_never_finite_has_no_size():
    """Not 0, which would be a measurement."""
    model = prepared(graph(SQRT, {"w": EYE}))
    ranges = measure_ranges(model, [{"x": -X.abs() - 1}])
    assert set(ranges.largest) == {"x"} and "h" not in ranges.channels
    report = typed_model(model, ranges, FP16)
    assert [r.value for r in report.nonfinite] == ["r"]
    assert [r for r in report.headroom if r.largest == 0.0] == []


GUARDED = [
    *attention()[:3],
    ("IsNaN", ["p"], ["nan"], {}),
    ("Where", ["nan", "zero", "p"], ["g"], {}),
    ("MatMul", ["g", "w"], ["y"], {}),
]


@pytest.mark.parametrize(
    ("nodes", "mask", "rows"),
    [
        (attention(), HIDE, False),
        (attention(), WHOLE, True),
        (GUARDED, WHOLE, False),
        (OPERATOR, HIDE[None], False),
        (OPERATOR, WHOLE[None], False),
    ],
)
def test_masks_and_rows_that_they_hide_whole_are_no_fault(nodes, mask, rows):
    """NaN comes from a softmax without a number: ranges are of the others, and say so."""
    proto = graph(nodes, {"w": EYE, "m": mask, "zero": 0.0})
    model = prepared(proto)
    ranges = measure_ranges(model, [{"x": X}])
    report = typed_model(model, ranges, FP16)
    assert report.nonfinite == [] and report.unproved == []
    partly = {r.value.split("/")[0] for r in report.headroom if r.source == "measured where finite"}
    assert ("y" in partly) == rows
    assert {r.source for r in report.headroom if r.value == "raw"} <= {"measured"}
    assert 0.1 < ranges.largest["y"] < 3
