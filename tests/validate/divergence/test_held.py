"""A value held at powers of two is equal where what reads it undoes them, and found where nothing does."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.validate.divergence import DiffOptions, GraphSide, SavedSide, diff

RNG = np.random.default_rng(7)
X = torch.tensor(RNG.normal(size=(6, 16)).astype("f4"))
UP, DOWN = (RNG.normal(size=size).astype("f4") for size in ((16, 24), (24, 16)))
UNIFORM = np.full(24, 2.0**-3, "f4")
CHANNELS = np.exp2(np.where(np.arange(24) % 5 == 2, -(np.arange(24.0) // 2), 0)).astype("f4")

SHAPES = (([1, 6, 4, 6], "split"), ([6, 24], "merged"))


def side(up=UP, down=DOWN, *, shown=False, heads=False):
    """y = relu(x up) down, h = x up. heads: relu(h) goes to [1, head, token, number] and back."""
    info, node = helper.make_tensor_value_info, helper.make_node
    outputs = [info("y", TensorProto.FLOAT, [6, 16])]
    outputs += [info("h", TensorProto.FLOAT, [6, 24])] if shown else []
    split, merged = (numpy_helper.from_array(np.array(v), n) for v, n in SHAPES)
    moves = [
        node("Reshape", ["a", "split"], ["a4"], name="split heads"),
        node("Transpose", ["a4"], ["heads"], perm=[0, 2, 1, 3], name="to heads"),
        node("Transpose", ["heads"], ["back"], perm=[0, 2, 1, 3], name="from heads"),
        node("Reshape", ["back", "merged"], ["c"], name="merge heads"),
    ]
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "up.weight"], ["h"], name="up"),
            node("Relu", ["h"], ["a"], name="act"),
            *(moves if heads else ()),
            node("MatMul", ["c" if heads else "a", "down.weight"], ["y"], name="down"),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [6, 16])],
        outputs,
        [numpy_helper.from_array(w, f"{n}.weight") for n, w in (("up", up), ("down", down))]
        + [split, merged],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return GraphSide("graph", ir.from_proto(model))


def compared(reference, candidate):
    return diff(reference, candidate, DiffOptions(inputs={"x": X}))


@pytest.mark.parametrize("factor", [UNIFORM, 1 / UNIFORM, CHANNELS], ids=["down", "up", "channels"])
def test_powers_that_are_undone_are_equal_and_named(factor):
    found = compared(side(), side(UP * factor, DOWN / factor[:, None]))
    assert found.equal, found.first
    (note,) = found.notes
    assert note.startswith("2 values are held at powers of two") and note.endswith(": h, a")
    assert all(not e.diverged for e in found.errors.values())


@pytest.mark.parametrize(
    ("up", "down", "node"),
    {
        "not undone": (UNIFORM, 1 / UNIFORM * UNIFORM, "up"),
        "channels not undone": (CHANNELS, UNIFORM / UNIFORM, "up"),
        "another power": (UNIFORM, 0.5 / UNIFORM, "down"),
        "one channel by another": (CHANNELS, 1 / CHANNELS * (1 + (np.arange(24) == 12)), "down"),
        "three, undone": (UNIFORM * 24, 1 / (UNIFORM * 24), "up"),
        "never held, undone": (UNIFORM / UNIFORM, 1 / UNIFORM, "down"),
    }.values(),
)
def test_near_misses_are_found_at_their_node(up, down, node):
    candidate = side(UP * up.astype("f4"), DOWN * down[:, None].astype("f4"))
    found = compared(side(), candidate)
    assert found.first is not None, found.notes
    assert found.first.node == node, found.first


def test_an_output_is_never_held():
    factor = UNIFORM
    reference, candidate = (
        side(shown=True),
        side(UP * factor, DOWN / factor[:, None], shown=True),
    )
    found = compared(reference, candidate)
    assert found.first is not None and found.first.node == "up"


def test_saved_values_in_any_order():
    """Names sorted as safetensors sorts them: a lies before the h that it comes from."""
    h = X @ torch.tensor(UP * CHANNELS)
    values = {"a": h.relu(), "h": h, "y": h.relu() @ torch.tensor(DOWN / CHANNELS[:, None])}
    assert compared(side(), SavedSide("saved", values)).equal
    alone = compared(side(), SavedSide("saved", {"h": h}))
    assert alone.first is not None and alone.first.node == "up"


def test_a_row_of_a_weight_that_inputs_do_not_reach_is_found():
    """x never uses channel 3: its row of `up` is eight times larger beside a held h."""
    x = X.clone()
    x[:, 3] = 0
    up = UP * UNIFORM
    up[3, :5] *= 3
    candidate = side(up, DOWN / UNIFORM[:, None])
    found = diff(side(), candidate, DiffOptions(inputs={"x": x}))
    assert found.first is not None and found.first.node == "up"


def test_powers_follow_heads():
    found = compared(side(heads=True), side(UP * CHANNELS, DOWN / CHANNELS[:, None], heads=True))
    assert found.equal, found.first
    assert any(note.startswith("6 values are held") for note in found.notes)
    found = compared(side(heads=True), side(UP * CHANNELS, heads=True))
    assert found.first is not None and found.first.node == "up"
