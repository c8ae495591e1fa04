"""What a run may ask of the machine: sizes and iterations are refused before anything is allocated; near misses run."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from blockforge.core.errors import UsageError
from blockforge.graph.evaluator import Limits, TypedEvaluator, limits_here
from blockforge.graph.evaluator.limits import LOOP_STEPS, VALUE_BYTES, free_bytes

HUGE = 2**40
X = h.make_tensor_value_info("x", T.FLOAT, ["b", 16])


def model_of(*nodes, **weights):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = h.make_graph(list(nodes), "g", [X], [h.make_tensor_value_info("y", T.FLOAT, None)], tensors)  # fmt: skip
    return ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10))


def run(model, *, exact=False, **limits):
    asked = Limits(**{"value_bytes": 1 << 20} | limits)
    return TypedEvaluator(model, exact=exact, limits=asked).run({"x": torch.ones(2, 16)}).outputs["y"]  # fmt: skip


def node(op, ins, out="y", **a):
    return h.make_node(op, ins, [out], name=op.lower(), **a)


ASKED = {
    "Expand": lambda n: (node("Expand", ["x", "n"]), {"n": np.array([n, 1, 1])}),
    "ConstantOfShape": lambda n: (node("ConstantOfShape", ["n"]), {"n": np.array([n])}),
    "Tile": lambda n: (node("Tile", ["x", "n"]), {"n": np.array([n, 1])}),
    "Range": lambda n: (node("Range", ["z", "n", "o"]), {"z": np.float32(0), "n": np.float32(n), "o": np.float32(1)}),
    "Pad": lambda n: (node("Pad", ["x", "n"]), {"n": np.array([0, 0, n, 0])}),
    "OneHot": lambda n: (node("OneHot", ["i", "n", "v"]), {"i": np.zeros(2, np.int64), "n": np.int64(n), "v": np.array([0, 1], np.float32)}),
    "Resize": lambda n: (node("Resize", ["x", "", "s"]), {"s": np.array([n, 1], np.float32)}),
    "RandomNormal": lambda n: (node("RandomNormal", [], shape=[n]), {}),
}  # fmt: skip


@pytest.mark.parametrize("op", ASKED)
def test_a_value_that_is_too_large_is_refused(op):
    made, weights = ASKED[op](HUGE)
    with pytest.raises(UsageError, match=rf"'{op.lower()}' \({op}\).*\d{{13}}") as error:
        run(model_of(made, **weights))
    assert VALUE_BYTES in error.value.fix
    made, weights = ASKED[op](3)
    assert run(model_of(made, **weights)).numel() < 200


@pytest.mark.parametrize(("op", "ins"), [("Add", "xt"), ("MatMul", "cx"), ("Einsum", "xx")])
def test_what_two_inputs_span_is_refused(op, ins):
    """[2, 16] against its transpose, and an outer product; each allowed with its own size and refused below it."""
    more = {"equation": "ab,cd->abcd"} if op == "Einsum" else {}
    model = model_of(
        h.make_node("Reshape", ["x", "column"], ["t"]), h.make_node("Transpose", ["x"], ["c"]), node(op, list(ins), **more),
        column=np.array([32, 1, 1]),
    )  # fmt: skip
    size = {"Add": 32 * 32, "MatMul": 16 * 16, "Einsum": 32 * 32}[op]
    assert run(model, value_bytes=size * 4).numel() == size
    with pytest.raises(UsageError, match=f"makes {size} elements"):
        run(model, value_bytes=size * 4 - 1)
    with pytest.raises(UsageError, match=f"makes {size} elements"):
        run(model, value_bytes=size * 8 - 1, exact=True)


def loop(trips, stops=False, stacked=False):
    info = h.make_tensor_value_info
    nodes = [h.make_node("Add", ["s", "one"], ["so"])]
    nodes.append(h.make_node("Less", ["i", "last"], ["go"]) if stops else h.make_node("Identity", ["on"], ["go"]))  # fmt: skip
    outs = [info("go", T.BOOL, []), info("so", T.FLOAT, None)]
    if stacked:
        nodes.append(h.make_node("Identity", ["s"], ["sc"]))
        outs.append(info("sc", T.FLOAT, None))
    ins = [info("i", T.INT64, []), info("on", T.BOOL, []), info("s", T.FLOAT, None)]
    held = [numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(np.int64(8), "last")]  # fmt: skip
    body = h.make_graph(nodes, "body", ins, outs, held)
    results = ["state", "y"] if stacked else ["y"]
    made = h.make_node("Loop", ["n", "", "x"], results, name="loop", body=body)
    return model_of(made, n=np.int64(trips))


def test_a_loop_without_end_is_refused_before_it_begins(monkeypatch):
    entered = []
    monkeypatch.setattr(torch, "add", lambda *a: entered.append(a))
    with pytest.raises(UsageError, match=rf"'loop' \(Loop\).*{2**60} iterations") as error:
        run(loop(2**60))
    assert LOOP_STEPS in error.value.fix and not entered


def test_a_loop_that_may_stop_runs_until_it_does_or_the_steps_are_spent():
    assert float(run(loop(2**60, stops=True))[0, 0]) == 10
    with pytest.raises(UsageError, match="more than 20 steps in loops"):
        run(loop(2**60, stops=True), loop_steps=20)
    assert float(run(loop(5), loop_steps=15)[0, 0]) == 6


def test_what_a_loop_stacks_is_bounded():
    assert run(loop(5, stacked=True), value_bytes=5 * 128).shape == (5, 2, 16)
    with pytest.raises(UsageError, match="stack 640 bytes"):
        run(loop(5, stacked=True), value_bytes=5 * 128 - 1)


def test_the_limits_come_from_the_memory_and_two_variables(monkeypatch):
    for name in (VALUE_BYTES, LOOP_STEPS):
        monkeypatch.delenv(name, raising=False)
    assert 1 << 20 < limits_here().value_bytes <= max(free_bytes(), 1) * 2
    monkeypatch.setenv(VALUE_BYTES, "1000")
    monkeypatch.setenv(LOOP_STEPS, "7")
    assert limits_here() == Limits(1000, 7)
    for wrong in ("0", "-5", "2GiB"):
        monkeypatch.setenv(VALUE_BYTES, wrong)
        with pytest.raises(UsageError, match=VALUE_BYTES):
            limits_here()
