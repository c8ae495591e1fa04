"""Shapes that a graph leaves out: what ONNX infers is filled in, what is declared stays, and nothing grows without bound."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from blockforge.graph.shape_inference import MOST_NUMBERS, SMALL, infer_shapes


def model_of(nodes, ins, outs, weights=None, functions=(), infos=()):
    """ins, outs and infos: name -> (type, dims); weights: name -> array."""
    edges = [
        [h.make_tensor_value_info(n, t, d) for n, (t, d) in e.items()]
        for e in (ins, outs, dict(infos))
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = h.make_graph(nodes, "g", edges[0], edges[1], tensors, value_info=edges[2])
    opsets = [h.make_opsetid("", 24), h.make_opsetid("own", 1)]
    return ir.from_proto(h.make_model(graph, opset_imports=opsets, ir_version=11, functions=list(functions)))  # fmt: skip


def told(model):
    """Value name -> (type, axes), inner graphs included."""
    values = [o for node in model.graph.all_nodes() for o in node.outputs]
    return {
        v.name: (
            v.dtype and v.dtype.name,
            v.shape and tuple(d if isinstance(d, int) else d.value for d in v.shape),
        )
        for v in values
    }


X = {"x": (T.FLOAT16, ["b", "s", 64])}
ANY = {"y": (T.FLOAT16, None)}


def test_shapes_and_types_are_filled_in():
    nodes = [h.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), h.make_node("MatMul", ["t", "w"], ["y"])]  # fmt: skip
    model = model_of(nodes, X, ANY, {"w": np.ones((64, 32), np.float16)})
    assert infer_shapes(model) == 2
    assert told(model) == {"t": ("FLOAT16", ("s", "b", 64)), "y": ("FLOAT16", ("s", "b", 32))}
    assert infer_shapes(model) == 0


def test_sizes_that_are_computed_are_followed():
    """cos [1, S, 8] of batch 1, as the exporter writes it: Shape, Gather, Concat, Expand."""
    nodes = [
        h.make_node("Shape", ["x"], ["sizes"]),
        h.make_node("Gather", ["sizes", "one"], ["length"]),
        h.make_node("Concat", ["first", "length", "last"], ["target"], axis=0),
        h.make_node("Expand", ["w", "target"], ["y"]),
    ]
    held = {"one": np.array([1]), "first": np.array([1]), "last": np.array([8]), "w": np.float16(1)}
    model = model_of(nodes, X, ANY, held)
    infer_shapes(model)
    assert told(model)["y"] == ("FLOAT16", (1, "s", 8))


def test_what_is_declared_stays():
    nodes = [h.make_node("Relu", ["x"], ["a"]), h.make_node("Neg", ["a"], ["y"])]
    model = model_of(nodes, X, ANY, infos={"a": (T.FLOAT16, ["batch", None, 64])})
    infer_shapes(model)
    assert told(model) == {"a": ("FLOAT16", ("batch", "s", 64)), "y": ("FLOAT16", ("batch", "s", 64))}  # fmt: skip


def test_branches_are_filled_in():
    sides = [
        h.make_graph([h.make_node(op, ["x"], [op])], op, [], [h.make_tensor_value_info(op, T.FLOAT16, None)])
        for op in ("Relu", "Neg")
    ]  # fmt: skip
    node = h.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])
    model = model_of([node], X | {"c": (T.BOOL, [])}, ANY)
    infer_shapes(model)
    assert told(model)["Relu"] == ("FLOAT16", ("b", "s", 64))


def test_weights_are_not_read():
    """Neither the bytes of a weight nor those of a large Constant; numbers of small ones are used."""

    class Unread(ir.Tensor):
        def numpy(self):
            raise AssertionError("a weight was read")

        tobytes = numpy

    nodes = [h.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, X, ANY, {"w": np.ones((64, 32), np.float16)})
    large = Unread(np.ones((64, 32), np.float16), name="w")
    assert large.nbytes > SMALL
    model.graph.initializers["w"].const_value = large
    infer_shapes(model)
    assert told(model)["y"] == ("FLOAT16", ("b", "s", 32))


def test_sizes_that_double_are_not_followed():
    """Concat of a value with itself, 40 times: 2^40 numbers in ONNX's inference; near miss: a few of them."""
    for times in (40, 4):
        nodes = [h.make_node("Shape", ["x"], ["s0"])]
        nodes += [h.make_node("Concat", [f"s{i}"] * 2, [f"s{i + 1}"], axis=0) for i in range(times)]
        nodes.append(h.make_node("ConstantOfShape", [f"s{times}"], ["y"]))
        model = model_of(nodes, X, {"y": (T.FLOAT, None)})
        assert MOST_NUMBERS < 3 * 2**40
        infer_shapes(model)
        rank = 3 * 2**times
        assert told(model)[f"s{times}"] == ("INT64", (rank,))
        assert (told(model)["y"][1] is not None) == (times == 4)


def test_a_domain_without_a_version_and_a_graph_without_sense():
    nodes = [h.make_node("Thing", ["x"], ["t"], domain="else"), h.make_node("Relu", ["x"], ["y"])]
    model = model_of(nodes, X, ANY)
    infer_shapes(model)
    assert told(model) == {"t": (None, None), "y": ("FLOAT16", ("b", "s", 64))}
    broken = model_of([h.make_node("MatMul", ["x", "w"], ["y"])], X, ANY, {"w": np.ones((3, 3), np.float16)})  # fmt: skip
    infer_shapes(broken)
    assert told(broken)["y"] == ("FLOAT16", None)


def test_the_model_is_otherwise_as_before():
    nodes = [h.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, X, {"y": (T.FLOAT16, ["b", "s", None])}, {"w": np.ones((64, 32), np.float16)})  # fmt: skip
    before = ir.to_proto(model)
    infer_shapes(model)
    after = ir.to_proto(model)
    assert after.graph.output[0].type.tensor_type.shape.dim[2].dim_value == 32
    after.graph.output[0].CopyFrom(before.graph.output[0])
    assert onnx.ModelProto.SerializeToString(after) == before.SerializeToString()
