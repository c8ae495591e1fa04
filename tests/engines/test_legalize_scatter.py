"""TensorScatter into a computed cache, spelled out: equal to ONNX's reference evaluator, and left alone where it builds."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blockforge.engines.legalize import legalize
from blockforge.engines.target import Target

TARGET = Target.parse("tensorrt-rtx:sm89")
FP32, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph(*, shape=("b", 2, 12, 4), steps="s", axis=2, computed=True, write=True, **attributes):
    """y = TensorScatter(-a, u, w), or of a itself."""
    update = [*shape]
    update[axis] = steps
    held = "c" if computed else "a"
    inputs = [held, "u", "w"] if write else [held, "u"]
    nodes = [helper.make_node("Neg", ["a"], ["c"], name="Neg")] if computed else []
    nodes.append(helper.make_node("TensorScatter", inputs, ["y"], name="write", axis=axis, **attributes))  # fmt: skip
    info = helper.make_tensor_value_info
    edges = [info("a", FP32, list(shape)), info("u", FP32, update)]
    edges += [info("w", INT64, ["b"])] if write else []
    model = helper.make_model(
        helper.make_graph(nodes, "g", edges, [info("y", FP32, list(shape))]),
        opset_imports=[helper.make_opsetid("", 24)], ir_version=11,
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def legal(model):
    made, changed = legalize(ir.from_proto(model), TARGET)
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    return proto, changed


CASES = {
    "several tokens": ({}, (3, 2, 12, 4), 5),
    "one token": ({"steps": 1}, (3, 2, 12, 4), 1),
    "one of several": ({}, (3, 2, 12, 4), 1),
    "a whole cache": ({}, (2, 2, 12, 4), 12),
    "a cache of any length": ({"shape": ("b", 2, "l", 4)}, (3, 2, 9, 4), 2),
    "length before heads": ({"shape": ("b", 12, 2, 4), "axis": 1}, (3, 12, 2, 4), 4),
    "no places given": ({"write": False}, (3, 2, 12, 4), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_it_writes_what_onnx_writes(name):
    """Rows of a batch at different places, the first and the last among them; nothing is computed, so bits are equal."""
    form, shape, steps = CASES[name]
    axis = form.get("axis", 2)
    model = graph(**form)
    proto, changed = legal(model)
    assert changed == ("write: cache update spelled out",)
    assert all(n.op_type != "TensorScatter" for n in proto.graph.node)
    rng = np.random.default_rng(0)
    update = [steps if i == axis else n for i, n in enumerate(shape)]
    feeds = {"a": rng.standard_normal(shape), "u": rng.standard_normal(update)}
    feeds = {k: v.astype(np.float32) for k, v in feeds.items()}
    if form.get("write", True):
        last = shape[axis] - steps
        feeds["w"] = np.array([0, last, last // 2][: shape[0]], np.int64)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = ReferenceEvaluator(proto).run(None, feeds)
    assert np.array_equal(found, wanted) and not np.array_equal(wanted, -feeds["a"])


@pytest.mark.parametrize("form", [{"computed": False}, {"mode": "circular"}], ids=["an input", "circular"])  # fmt: skip
def test_what_is_left_alone(form):
    proto, changed = legal(graph(**form))
    assert changed == () and any(n.op_type == "TensorScatter" for n in proto.graph.node)
