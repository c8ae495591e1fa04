"""Masks keep hiding and never make NaN, whatever number they hide with."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from .runs import UNIT, exact, typed

S = 4
FINFO = float(np.finfo(np.float32).min)


def scores_graph(nodes, weights, inputs=("s",)):
    """scores [b, S, S] (and more) -> y, opset 20."""
    shapes = {"s": ["b", S, S], "keep": ["b", S], "v": ["b", S, S]}
    types = {"keep": TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node(op, i, o, **a) for op, i, o, a in nodes],
        "scores",
        [
            helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes[n])
            for n in inputs
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", S, S])],
        [numpy_helper.from_array(np.array(v), n) for n, v in weights.items()],
    )
    opset = [helper.make_opsetid("", 23)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=11)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def two_planes(fill, second):
    causal = np.triu(np.ones((S, S), bool), 1)
    padded = np.zeros((S, S), bool)
    padded[:, 0] = True
    planes = [np.where(c, fill, 0).astype(np.float32) for c in (causal, padded & second)]
    nodes = [
        ("MatMul", ["s", "eye"], ["raw"], {}),  # so that the scores are 16 bit, as a GEMM's are
        ("Add", ["raw", "m1"], ["t"], {}),
        ("Add", ["t", "m2"], ["u"], {}),
        ("Softmax", ["u"], ["p"], {"axis": -1}),
        ("MatMul", ["p", "eye"], ["y"], {}),
    ]
    weights = {"m1": planes[0], "m2": planes[1], "eye": np.eye(S, dtype=np.float32)}
    return scores_graph(nodes, weights), causal | (padded & second)


SCORES = torch.from_numpy(np.random.default_rng(0).normal(size=(1, S, S)).astype(np.float32)) * 20


@pytest.mark.parametrize(
    ("fill", "second", "scores"),
    [
        (FINFO, False, SCORES),
        (-65504.0, True, torch.full((1, S, S), -40.0)),
        (-1e9, False, SCORES),
        (-np.inf, True, SCORES),
        (FINFO, False, torch.tensor([[[-2e4, -2e4, -2e4, 1e4]] * S])),
    ],
    ids=["finfo", "two planes", "-1e9", "infinite", "far scores"],
)
def test_added_masks_hide_and_stay_finite(fill, second, scores):
    proto, hidden = two_planes(fill, second)
    _, report, run = typed(proto, {"s": scores})
    y = run.outputs["y"][0]
    assert torch.isfinite(y).all()
    rows = ~hidden.all(-1)
    assert float(y.numpy()[rows][hidden[rows]].max()) < 1e-6
    changed = {c.where: c.after for c in report.masks}
    assert changed == ({"m1": -65504.0, "m2": -65504.0} if np.isinf(fill) else {})
    if not np.isinf(fill):
        truth = exact(proto, {"s": scores})["y"]
        # scores near 60 are held to 2^-6: a relative error of e^(2^-6) - 1 in the worst weight
        assert float((y - truth[0]).abs().max()) < 2 * 64 * UNIT_FP16


UNIT_FP16 = next(iter(UNIT.values()))


def test_a_guard_for_hidden_rows_keeps_its_infinities():
    """IsNaN after the softmax turns a row of NaN into zeros: a finite mask would turn it into an average."""
    hide = np.zeros((S, S), np.float32)
    hide[2] = -np.inf
    nodes = [
        ("Add", ["s", "m"], ["t"], {}),
        ("Softmax", ["t"], ["p"], {"axis": -1}),
        ("IsNaN", ["p"], ["nan"], {}),
        ("Where", ["nan", "zero", "p"], ["guarded"], {}),
        ("MatMul", ["guarded", "eye"], ["y"], {}),
    ]
    weights = {"m": hide, "zero": np.float32(0), "eye": np.eye(S, dtype=np.float32)}
    _, report, run = typed(scores_graph(nodes, weights), {"s": SCORES})
    assert report.masks == []
    assert float(run.outputs["y"][0, 2].abs().max()) == 0
    assert float(run.outputs["y"][0, 0].sum()) == pytest.approx(1, abs=S * UNIT_FP16)


def test_a_mask_computed_from_ids_is_bounded_before_its_cast():
    """(1 - keep) * finfo.min meets a 16-bit Attention: two such planes would pass its range."""
    nodes = [
        ("Cast", ["keep"], ["k"], {"to": TensorProto.FLOAT}),
        ("Sub", ["one", "k"], ["gone"], {}),
        ("Mul", ["gone", "fill"], ["row"], {}),
        ("Add", ["row", "row"], ["twice"], {}),
        ("Unsqueeze", ["twice", "axes"], ["mask"], {}),
        (
            "Attention",
            ["s", "s", "v", "mask"],
            ["y"],
            {"q_num_heads": 1, "kv_num_heads": 1},
        ),
    ]
    weights = {
        "one": np.float32(1),
        "fill": np.float32(-65504),
        "axes": np.array([1, 2], np.int64),
    }
    proto = scores_graph(nodes, weights, ("s", "v", "keep"))
    feeds = {"s": SCORES / 20, "v": SCORES, "keep": torch.tensor([[1, 1, 0, 1]])}
    model, _, run = typed(proto, feeds)
    assert run.overflow == ()
    assert [n.op_type for n in model.graph].count("Max") == 1
    truth = exact(proto, feeds)["y"]
    assert float((run.outputs["y"] - truth).abs().max()) < 64 * 4 * UNIT_FP16
