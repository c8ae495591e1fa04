"""Circles, recursion and functions that unfold without end are refused when a file is read; near misses load."""

import pytest
from onnx import TensorProto as T
from onnx import helper as h

from blockforge.core.errors import ArtefactError
from blockforge.graph.io import load_model
from blockforge.graph.soundness import MOST_UNFOLDED

X = h.make_tensor_value_info("x", T.FLOAT, [8])
Y = h.make_tensor_value_info("y", T.FLOAT, [8])


def node(op, ins, out, **a):
    return h.make_node(op, ins.split(), [out], name=f"{op}_{out}", **a)


def stored(folder, nodes, functions=()):
    graph = h.make_graph(nodes, "g", [X], [Y])
    opsets = [h.make_opsetid("", 24), h.make_opsetid("f", 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=11, functions=list(functions))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def function(name, *nodes):
    opsets = [h.make_opsetid("", 24), h.make_opsetid("f", 1)]
    return h.make_function("f", name, ["x"], ["y"], list(nodes), opsets)


def branch(out, *nodes):
    return h.make_graph(list(nodes), out, [], [h.make_tensor_value_info(out, T.FLOAT, [8])])


def conditional(reads):
    """If whose branch reads `reads`; the condition comes from x."""
    sides = {f"{side}_branch": branch(f"{side}o", node("Relu", reads, f"{side}o")) for side in ("then", "else")}  # fmt: skip
    return [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=T.BOOL), node("If", "c", "i", **sides)]  # fmt: skip


CIRCLES = {
    "two nodes": [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")],
    "itself": [node("Add", "x a", "a"), node("Relu", "a", "y")],
    "through a branch": [*conditional("r"), node("Relu", "i", "r"), node("Relu", "r", "y")],
    "its own output": [*conditional("i"), node("Relu", "i", "y")],
}


@pytest.mark.parametrize("nodes", CIRCLES.values(), ids=CIRCLES)
def test_a_circle_is_refused(nodes, tmp_path):
    path = stored(tmp_path, nodes)
    with pytest.raises(ArtefactError, match="in a circle"):
        load_model(path)
    assert load_model(path, allow_circles=True).graph.num_nodes() == len(nodes)


def test_a_circle_in_a_body_is_refused(tmp_path):
    body = function("A", node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y"))
    path = stored(tmp_path, [node("A", "x", "y", domain="f")], [body])
    with pytest.raises(ArtefactError, match=r"'Add_a'.*circle|'Relu_b'.*circle"):
        load_model(path)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "a", "y"), node("Relu", "x", "a")],
        [*reversed([*conditional("r"), node("Relu", "x", "r"), node("Relu", "i", "y")])],
        [node("Add", "x x", "a"), node("Add", "a a", "b"), node("Add", "a b", "y")],
    ],
    ids=["unsorted", "unsorted branch", "diamond"],
)
def test_near_miss_no_circle(nodes, tmp_path):
    load_model(stored(tmp_path, nodes))


def test_the_message_names_the_circle_alone(tmp_path):
    ring = [node("Relu", f"r{i}", f"r{(i + 1) % 6}") for i in range(6)]
    path = stored(tmp_path, [node("Relu", "r3", "tail"), node("Relu", "tail", "y"), *ring])
    with pytest.raises(ArtefactError) as error:
        load_model(path)
    assert "and 2 more" in error.value.found and "tail" not in error.value.found


@pytest.mark.parametrize("through", [(), ("B",), ("B", "C")])
def test_recursion_is_refused(through, tmp_path):
    ring = ("A", *through)
    functions = [
        function(name, node(ring[(i + 1) % len(ring)], "x", "y", domain="f"))
        for i, name in enumerate(ring)
    ]
    with pytest.raises(ArtefactError, match="calls itself"):
        load_model(stored(tmp_path, [node("A", "x", "y", domain="f")], functions))


def doubling(depth):
    """F<k> calls F<k-1> twice: 2^depth nodes."""
    functions = [function("F0", node("Relu", "x", "y"))]
    functions += [
        function(f"F{k}", node(f"F{k - 1}", "x", "t", domain="f"), node(f"F{k - 1}", "t", "y", domain="f"))
        for k in range(1, depth + 1)
    ]  # fmt: skip
    return [node(f"F{depth}", "x", "y", domain="f")], functions


def test_calls_that_unfold_without_end_are_refused(tmp_path):
    assert 2**60 > MOST_UNFOLDED > 2**10
    with pytest.raises(ArtefactError, match=str(2**60)):
        load_model(stored(tmp_path, *doubling(60)))
    load_model(stored(tmp_path, *doubling(10)))
