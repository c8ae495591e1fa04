"""The evaluator's interface: inputs, kept values, functions, subgraphs, weights, errors."""

import functools
import weakref

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.operators import OPERATORS, Access, Operator

TWO_STEPS = "g (float16[N, 3] x) => (float16[N, 3] y) { h = Add(x, x)  y = Mul(h, x) }"


def parsed(body: str, opset: int = 24, domains: str = "", functions: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 11, opset_import: ["" : {opset}{domains}]> {body} {functions}'
    )


def test_outputs_and_kept_values_have_their_declared_types(evaluate):
    x = torch.tensor([[1.0, 2.0, 3.0]]).half()
    result = evaluate(TWO_STEPS, {"x": x}, keep=("h", "x", "y"))
    assert result.outputs["y"].dtype == torch.float16
    assert result.outputs["y"].tolist() == [[2.0, 8.0, 18.0]]
    assert result.kept["h"].tolist() == [[2.0, 4.0, 6.0]]
    assert set(result.kept) == {"h", "x", "y"}
    assert result.largest == {"h": 6.0, "y": 18.0}
    assert result.overflow == ()


def test_arithmetic_on_halves_happens_in_fp32_and_rounds_once(evaluate):
    """In fp16 throughout, 2048 + 1 would already be 2048 before the second addend comes."""
    body = "g (float16[2] x) => (float16[2] y) { y = Sum(x, x, x) }"
    x = torch.tensor([1365.0, 683.0]).half()
    exact = (x.double() * 3).half()
    assert torch.equal(evaluate(body, {"x": x}).outputs["y"], exact)


def test_exact_computes_in_fp64_without_rounding(evaluate):
    x = torch.tensor([[1 / 3, 1e6, 1e-9]], dtype=torch.float64)
    result = evaluate(TWO_STEPS, {"x": x}, exact=True)
    assert result.outputs["y"].dtype == torch.float64
    assert torch.equal(result.outputs["y"], 2 * x * x)


def test_exact_casts_do_not_round_and_still_truncate_to_integers(evaluate):
    body = (
        """g (float[3] x) => (float16[3] h, int32[3] i) { h = Cast<to=10>(x)  i = Cast<to=6>(h) }"""
    )
    x = torch.tensor([70000.0, 1 / 3, -2.7], dtype=torch.float64)
    outputs = evaluate(body, {"x": x}, exact=True).outputs
    assert torch.equal(outputs["h"], x)
    assert outputs["i"].tolist() == [70000, 0, -2]


def test_runs_repeat(evaluate):
    evaluator = TypedEvaluator(parsed(TWO_STEPS))
    x = torch.randn(4, 3).half()
    first, second = (evaluator.run({"x": x}).outputs["y"] for _ in range(2))
    assert torch.equal(first, second)
    assert evaluator.run({"x": x[:1]}).outputs["y"].shape == (1, 3)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "input 'x': not given"),
        (
            {"x": torch.zeros(1, 3).half(), "z": torch.zeros(1)},
            "inputs z: the graph has no such input",
        ),
        ({"x": torch.zeros(1, 3)}, "input 'x': fp32, but the graph declares fp16"),
        ({"x": torch.zeros(3).half()}, "input 'x': rank 1"),
        ({"x": torch.zeros(1, 4).half()}, "input 'x': axis 1 has size 4. It must be 3"),
    ],
)
def test_misfitting_inputs(evaluate, feeds, words):
    with pytest.raises(UsageError, match=words):
        evaluate(TWO_STEPS, feeds)


def test_one_axis_name_has_one_size(evaluate):
    body = "g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }"
    with pytest.raises(UsageError, match=r"input 'z', axis 0 \(N\): size 1, but 'x' has 2"):
        evaluate(body, {"x": torch.zeros(2), "z": torch.zeros(1)})


def test_unknown_kept_value_lists_near_names(evaluate):
    with pytest.raises(UsageError, match=r"value 'hh'.*Close to it: h"):
        evaluate(TWO_STEPS, {"x": torch.zeros(1, 3).half()}, keep=("hh",))


def test_unknown_operator_is_named_before_anything_runs():
    model = parsed(
        "g (float[1] x) => (float[1] y) { y = some.where.Frobnicate(x) }",
        domains=', "some.where" : 1',
    )
    with pytest.raises(
        UsageError, match=r"operator Frobnicate of domain 'some.where' \(node 'Frobnicate_0'\)"
    ):
        TypedEvaluator(model)


def test_missing_opset_import_is_named():
    with pytest.raises(UsageError, match="no version of domain 'other'"):
        TypedEvaluator(
            parsed(
                "g (float[1] x) => (float[1] y) { y = other.F(x) }",
                functions="""
            <domain: "other", opset_import: ["" : 24]> F (a) => (b) { b = Relu(a) }""",
            )
        )


def test_a_failing_node_says_which_and_what_it_got(evaluate):
    body = "g (float[2, 3] x) => (float y) { h = Relu(x)  y = MatMul(h, x) }"
    with pytest.raises(
        UsageError, match=r"node 'MatMul_1' \(MatMul\): .*inputs fp32\[2, 3\], fp32\[2, 3\]"
    ):
        evaluate(body, {"x": torch.zeros(2, 3)})


def test_a_wrong_declared_type_is_an_error():
    model = parsed("g (float[1] x) => (float[1] y) { h = Relu(x)  y = Relu(h) }")
    model.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    with pytest.raises(
        UsageError, match=r"value 'h' of node 'Relu_0'.*declared fp16, but the operator gives fp32"
    ):
        TypedEvaluator(model).run({"x": torch.zeros(1)})


def test_mixed_types_are_an_error(evaluate):
    body = "g (float16[1] x, float[1] z) => (float16[1] y) { y = Add(x, z) }"
    with pytest.raises(UsageError, match=r"node 'Add_0' \(Add\): input B of Add: fp32 beside fp16"):
        evaluate(body, {"x": torch.zeros(1).half(), "z": torch.zeros(1)})


# --- weights and memory ---


def external(tmp_path, dtype=np.float16):
    """x @ w with w in a file, behind an If whose other branch needs no weight."""
    w = np.random.default_rng(0).normal(size=(64, 32)).astype(dtype)
    elem = helper.np_dtype_to_tensor_dtype(w.dtype)
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"])], "t", [], [info("a", elem, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "e", [], [info("b", elem, None)]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        "g",
        [info("c", TensorProto.BOOL, []), info("x", elem, ["n", 64])],
        [info("y", elem, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    return path, torch.from_numpy(w)


def test_weights_are_read_when_used_and_not_before(tmp_path):
    path, w = external(tmp_path)
    evaluator = TypedEvaluator(path)
    (tmp_path / "model.data").rename(tmp_path / "elsewhere")
    x = torch.randn(2, 64).half()
    unused = evaluator.run({"c": torch.tensor(False), "x": x})
    assert torch.equal(unused.outputs["y"], -x)
    with pytest.raises(ArtefactError, match="weight 'w'"):
        evaluator.run({"c": torch.tensor(True), "x": x})
    (tmp_path / "elsewhere").rename(tmp_path / "model.data")
    y = evaluator.run({"c": torch.tensor(True), "x": x}).outputs["y"]
    torch.testing.assert_close(y, (x.double() @ w.double()).half(), rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("cache", [False, True])
def test_cached_weights_change_no_number(tmp_path, cache, exact):
    path, w = external(tmp_path)
    evaluator = TypedEvaluator(path, exact=exact, cache_weights=cache)
    feeds = {"c": torch.tensor(True), "x": torch.randn(2, 64).half()}
    first, second = (evaluator.run(feeds).outputs["y"] for _ in range(2))
    assert torch.equal(first, second)
    expected = feeds["x"].double() @ w.double()
    torch.testing.assert_close(
        first.double(), expected, rtol=1e-14 if exact else 2**-10, atol=0 if exact else 1e-3
    )


def test_an_input_may_replace_a_weight():
    text = '<ir_version: 11, opset_import: ["" : 24]> g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }'
    evaluator = TypedEvaluator(ir.from_onnx_text(text), cache_weights=True)
    x = torch.tensor([3.0, 4.0])
    assert evaluator.run({"x": x}).outputs["y"].tolist() == [3, 8]
    assert evaluator.run({"x": x, "w": torch.tensor([10.0, 20.0])}).outputs["y"].tolist() == [
        30,
        80,
    ]
    assert evaluator.run({"x": x}).outputs["y"].tolist() == [3, 8]


def test_values_are_freed_after_their_last_use(monkeypatch):
    seen: list[weakref.ref] = []
    alive: list[int] = []

    def watch(call, x):
        alive.append(sum(r() is not None for r in seen))
        y = x + 1
        seen.append(weakref.ref(y))
        return y

    monkeypatch.setitem(OPERATORS, ("", "Relu"), Operator(watch, Access.RAW))
    steps = "  ".join(f"v{i + 1} = Relu(v{i})" for i in range(8))
    TypedEvaluator(parsed(f"g (float[2] v0) => (float[2] v8) {{ {steps} }}")).run(
        {"v0": torch.zeros(2)}
    )
    assert max(alive) == 1  # only the value being read


def test_results_may_be_written_into():
    """Not into a weight's file map, nor into the caller's input, also where the graph only passes them on."""
    text = """<ir_version: 11, opset_import: ["" : 24]> g (float[1, 3] x) => (float[3, 1] y, float[3, 1] z, float[1, 3] v)
        <float[1, 3] w = {1, 2, 3}> { y = Transpose(w)  z = Transpose(x)  v = Identity(x) }"""
    evaluator = TypedEvaluator(ir.from_onnx_text(text))
    x = torch.tensor([[4.0, 5.0, 6.0]])
    for result in evaluator.run({"x": x}, keep=("y", "x")).outputs.values():
        result.zero_()
    again = evaluator.run({"x": x}).outputs
    assert again["y"].flatten().tolist() == [1, 2, 3]
    assert again["z"].flatten().tolist() == [4, 5, 6]


def test_inputs_are_never_changed(evaluate):
    body = """g (float[3] x, int64[1] i, float[1] u) => (float[3] y, float[3] z) {
        y = ScatterElements(x, i, u)  z = Clip(y) }"""
    x = torch.tensor([1.0, 2.0, 3.0])
    evaluate(body, {"x": x, "i": torch.tensor([0]), "u": torch.tensor([9.0])})
    assert x.tolist() == [1, 2, 3]


def test_watch_shows_each_value_as_kept() -> None:
    """The tensors that callbacks see are those that keep returns, the input among them, in order of computation."""
    model = parsed("g (float[N] x) => (float[N] z) { y = Neg(x) z = Mul(y, y) }")
    evaluator = TypedEvaluator(model)
    feeds = {"x": torch.tensor([1.0, -2.0])}
    kept = evaluator.run(feeds, keep=("x", "y", "z")).kept
    seen: dict[str, torch.Tensor] = {}
    evaluator.run(feeds, watch={n: functools.partial(seen.__setitem__, n) for n in ("z", "y", "x")})
    assert list(seen) == ["x", "y", "z"]
    assert all(torch.equal(seen[name], kept[name]) for name in kept)
    with pytest.raises(UsageError, match="w"):
        evaluator.run(feeds, watch={"w": print})
