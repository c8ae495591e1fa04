"""Each pass on the smallest graph it is for, and one near miss per guard. Oracle for numbers: onnx's own evaluator."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.export.driver import Done, run_passes
from blockforge.export.finish import attach_bodies, finish
from blockforge.export.fold import fold_constants, fold_shapes, lift_constants
from blockforge.export.layout import TRANSPOSED, fold_weight_transposes
from blockforge.export.naming import name_after_modules
from blockforge.export.precision import cast_edges

HEAD = '<ir_version: 12, opset_import: ["" : 24, "blockforge" : 1]>'


def graph(text: str) -> ir.Model:
    return ir.from_onnx_text(f"{HEAD} {text}")


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def outputs(model: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    return ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)


EXPANDED = """g (float[b, s, 4] x, float[1] y) => (float[b, s] z) {{
    one = Constant<value_ints = [{target}]>()
    head = Shape<start = 0, end = {end}>(x)
    tail = Shape<start = 1, end = 2>({other})
    scalar = Squeeze(tail)
    vector = Reshape(scalar, one)
    shape = Concat<axis = 0>(head, vector)
    z = Expand(y, shape)
}}"""
SHORT = ["Shape", "Expand"]


def folded(**changes: object) -> ir.Model:
    model = graph(EXPANDED.format(**({"target": -1, "end": 1, "other": "x"} | changes)))
    before = outputs(model, x=np.zeros((3, 5, 4), "float32"), y=np.ones(1, "float32"))
    run_passes(model, (fold_constants, fold_shapes))
    after = outputs(model, x=np.zeros((3, 5, 4), "float32"), y=np.ones(1, "float32"))
    np.testing.assert_array_equal(before[0], after[0])
    return model


@pytest.mark.parametrize("target", [-1, 1])
def test_two_detours_become_one_shape(target: int):
    model = folded(target=target)
    assert operators(model) == SHORT
    assert model.graph[0].attributes.get_int("start", 0) == 0
    assert model.graph[0].attributes.get_int("end") == 2


@pytest.mark.parametrize(
    "changes",
    [{"other": "y"}, {"end": -2}],
    ids=["two values' shapes", "ends that meet in no number"],
)
def test_other_slices_stay(changes: dict[str, object]):
    text = EXPANDED.format(**({"target": -1, "end": 1, "other": "x"} | changes))
    text = text.replace("Shape<start = 1, end = 2>(y)", "Shape<start = 0, end = 1>(y)")
    model = graph(text)
    fold_constants(model)
    fold_shapes(model)
    assert "Concat" in operators(model)


def test_a_squeeze_that_others_read_stays_for_them():
    model = graph(
        """g (float[b, s] x) => (int64[1] v, int64[] n) {
            one = Constant<value_ints = [-1]>()
            shape = Shape<start = 1>(x)
            n = Squeeze(shape)
            again = Reshape(n, one)
            v = Neg(again)
        }"""
    )
    fold_constants(model)
    fold_shapes(model)
    assert sorted(operators(model)) == ["Neg", "Shape", "Squeeze"]


def test_equal_constants_become_one_initializer_and_others_stay():
    model = graph(
        """g (float[n] x) => (float[n] y) {
            a = Constant<value_float = 2.0>()
            b = Constant<value_float = 2.0>()
            c = Constant<value_floats = [2.0]>()
            d = Constant<value_int = 2>()
            p = Mul(x, a)  q = Mul(p, b)  r = Mul(q, c)
            e = Cast<to = 1>(d)
            y = Mul(r, e)
        }"""
    )
    lift_constants(model)
    assert len(model.graph.initializers) == 3 and "Constant" not in operators(model)
    np.testing.assert_array_equal(outputs(model, x=np.ones(2, "float32"))[0], [16, 16])


def with_weight(text: str) -> ir.Model:
    """The graph with its input `w` as a weight that is not read yet."""
    model = graph(text)
    weight = next(v for v in model.graph.inputs if v.name == "w")
    model.graph.inputs.remove(weight)
    model.graph.register_initializer(weight) if weight.const_value else None
    model.graph.initializers["w"] = weight
    return model


LINEAR = """g (float[n, 4] x, float[6, 4] w) => ({outputs}) {{
    t = Transpose<perm = {perm}>(w)
    y = MatMul(x, t)
    {more}
}}"""


@pytest.mark.parametrize("attribute", ["<perm = [1, 0]>", ""])  # reversed is the default
def test_a_linear_weight_is_stored_as_it_is_read(attribute: str):
    text = LINEAR.format(outputs="float[n, 6] y", perm="[1, 0]", more="")
    model = with_weight(text.replace("<perm = [1, 0]>", attribute))
    assert fold_weight_transposes(model) == Done("fold weight transposes", 1)
    weight = model.graph.initializers["w"]
    assert operators(model) == ["MatMul"]
    assert list(weight.shape) == [4, 6] and weight.meta[TRANSPOSED]


@pytest.mark.parametrize(
    ("outputs_", "perm", "more"),
    [
        ("float[n, 6] y, float[6, 4] z", "[1, 0]", "z = Neg(w)"),
        ("float[n, 6] y, float[4, 6] t", "[1, 0]", ""),
        ("float[n, 4] y", "[0, 1]", ""),
        ("float[n, 6] y", "[1, 0]", "instead"),
    ],
    ids=[
        "also read as it is",
        "the transpose is an output",
        "perm swaps nothing",
        "another operator",
    ],
)
def test_other_weights_keep_their_layout(outputs_: str, perm: str, more: str):
    text = LINEAR.format(outputs=outputs_, perm=perm, more=more)
    if more == "instead":
        text = text.replace("Transpose<perm = [1, 0]>(w)", "Neg(w)").replace("instead", "")
    model = with_weight(text)
    before = operators(model)
    assert fold_weight_transposes(model).changed == 0
    assert operators(model) == before and list(model.graph.initializers["w"].shape) == [6, 4]


EDGES = "g (float16[n] x, int64[1] i, float[n] w) => (float16[n] y, int64[1] j, float[n] z) { y = Neg(x) j = Neg(i) z = Neg(w) }"


def test_float_edges_are_cast_and_others_are_not():
    model = graph(EDGES)
    run_passes(model, (cast_edges(DType.FP32), name_after_modules, finish))
    ends = {v.name: v.dtype.name for v in (*model.graph.inputs, *model.graph.outputs)}
    assert ends == {
        "x": "FLOAT",
        "i": "INT64",
        "w": "FLOAT",
        "y": "FLOAT",
        "j": "INT64",
        "z": "FLOAT",
    }
    assert sorted(operators(model)) == ["Cast", "Cast", "Neg", "Neg", "Neg"]
    narrow = [o for n in model.graph for o in n.outputs if o.dtype == ir.DataType.FLOAT16]
    assert len(narrow) == 2  # the graph still computes where it did
    feeds = {"x": np.ones(2, "float32"), "i": np.ones(1, "int64"), "w": np.ones(2, "float32")}
    assert outputs(model, **feeds)[0].dtype == np.float32


def test_an_input_that_is_an_output_gets_its_casts():
    model = graph("g (float16[n] x) => (float16[n] y) { y = Identity(x) }")
    run_passes(model, (cast_edges(DType.FP16),))
    assert operators(model) == ["Identity"]


def scoped(model: ir.Model, *scopes: str) -> ir.Model:
    """Give each node the module path that torch would leave on it."""
    for node, path in zip(model.graph, scopes, strict=True):
        parents = (
            [".".join(path.split(".")[:i]) for i in range(1, path.count(".") + 2)] if path else []
        )
        node.metadata_props["pkg.torch.onnx.name_scopes"] = str(["", *parents, "fx_1"])
    return model


def test_names_by_who_leaves_the_module():
    model = graph(
        """g (float[n] x) => (float[n] out) {
            v0 = Neg(x)  v1 = Exp(v0)  v2 = Cos(v1)  v3 = Sin(v1)  v4 = Add(v2, v3)  v5 = Add(v4, x)  out = Abs(v5)
        }"""
    )
    scoped(model, "a.b", "a", "r", "r", "c", "_empty_nn_module_stack_from_metadata_hook", "out")
    name_after_modules(model)
    names = {n.name: n.outputs[0].name for n in model.graph}
    assert names == {
        "a.b/Neg": "a.b",
        "a/Exp": "a",
        "r/Cos": "r/cos",  # two values leave r: neither is r
        "r/Sin": "r/sin",
        "c/Add": "c",
        "Add": "add",
        "out/Abs": "out",  # an output keeps its name
    }


def test_names_never_collide():
    model = graph(
        """g (float[n] add, float[n] a) => (float[n] out) {
            v0 = Add(add, a)  v1 = Add(v0, a)  v2 = Neg(v1)  out = Neg(v2)
        }"""
    )
    scoped(model, "", "", "a", "")
    name_after_modules(model)
    assert [n.outputs[0].name for n in model.graph] == ["add_1", "add_2", "a_1", "out"]
    assert [n.name for n in model.graph] == ["Add", "Add_1", "a/Neg", "Neg"]


def test_used_operators_get_bodies_and_unknown_ones_are_refused():
    model = graph("g (float[n] x) => (float[n] y) { y = blockforge.SwiGLU(x, x) }")
    attach_bodies(model)
    run_passes(model, (finish,))
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    (y,) = outputs(model, x=x)
    np.testing.assert_allclose(y, x * x / (1 + np.exp(-x)), rtol=4 * 2**-23)
    with pytest.raises(UsageError, match=r"blockforge::Nothing.*blockforge::SwiGLU"):
        attach_bodies(graph("g (float[n] x) => (float[n] y) { y = blockforge.Nothing(x) }"))


def test_finish_forgets_the_tracer_and_unused_domains():
    model = graph("g (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.metadata_props["path"] = model.graph[0].metadata_props["trace"] = "/home/someone"
    model.graph.outputs[0].metadata_props["kind"] = "USER_OUTPUT"
    model.graph[0].doc_string = model.doc_string = "line 7 of /home/someone/model.py"
    finish(model)
    text = str(ir.to_proto(model))
    assert "home" not in text and "USER_OUTPUT" not in text
    assert dict(model.opset_imports) == {"": 24}


def test_a_pass_that_breaks_the_graph_is_caught():
    def breaks(model: ir.Model) -> Done:
        model.graph[0].outputs[0].dtype = ir.DataType.INT64
        return Done("breaks", 1)

    with pytest.raises(UsageError):
        run_passes(graph("g (float[n] x) => (float[n] y) { y = Neg(x) }"), (breaks,))
