"""Norm and quantise, gate and quantise as one operator: the same bits, and every near miss left as it is."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from quantize_graphs import model_from, numbers

from blockforge.core.errors import UsageError
from blockforge.export.quantize.check import check_quantized
from blockforge.export.quantize.epilogues import fold_epilogues
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model, save_model
from blockforge.graph.spec import check_graph

f16 = np.float16


def operators(model):
    return [n.op_type for n in model.graph]


QUANTISE = "q = QuantizeLinear<output_dtype = 17>({}, s) d = DequantizeLinear<output_dtype = 10>(q, s) y = MatMul(d, m)"  # fmt: skip
NORM = "n = RMSNormalization<axis = -1, epsilon = 1e-5>(x, w)"
X, XR, Y = "float16[b, 8] x", "float16[b, 8] x, float16[b, 8] r", "float16[b, 4] y"
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": (RNG.standard_normal(8) + 2).astype(f16), "s": np.float32(0.02),
    "m": RNG.standard_normal((8, 4)).astype(f16),
}  # fmt: skip


def graph(body, inputs=X, more_outputs="", opset=24, **weights):
    held = {k: v for k, v in (WEIGHTS | weights).items() if f"{k}," in body or f"{k})" in body or f" {k}" in body}  # fmt: skip
    return model_from(f"g ({inputs}) => ({Y}{more_outputs}) {{ {body} }}", held, opset=opset)


def ran(model, **feeds):
    rng = torch.Generator().manual_seed(5)
    fed = {
        str(v.name): torch.randn(3, *v.shape[1:], generator=rng).half() for v in model.graph.inputs
    }
    return TypedEvaluator(model).run(fed | feeds).outputs


def test_the_codes_are_the_rounded_norm():
    """Against float64 and ml_dtypes: half a step of E4M3 (2^-4 of the number, or 2^-10 scales), and three roundings to
    FP16 on the way there (2^-11 each)."""
    model = graph(f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')}", XR)
    fold_epilogues(model)
    assert operators(model)[0] == "AddRMSNormQuantize"
    x, r = (numbers(64, 8, seed=s, dtype=torch.float16) for s in (1, 2))
    kept = TypedEvaluator(model).run({"x": x, "r": r}, keep=["q"]).kept["q"]
    total = x.double().numpy() + r.double().numpy()
    true = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * WEIGHTS["w"].astype(float)
    found = kept.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(float) * 0.02
    inside = np.abs(true) < 448 * 0.02
    bound = np.maximum(np.abs(true) * 2**-4, 0.02 * 2**-10) + 3 * 2**-11 * np.abs(true)
    assert inside.mean() > 0.9 and (np.abs(found - true) <= bound)[inside].all()
    assert (np.abs(found[~inside]) == 448 * np.float64(0.02)).all()


FOLDS = {
    "two quantisers of one scale": (f"{NORM} {QUANTISE.format('n')} q2 = QuantizeLinear<output_dtype = 17>(n, s2) z = DequantizeLinear<output_dtype = 10>(q2, s2)",
        X, ", float16[b, 8] z", ["RMSNormQuantize"], {"s2": np.float32(0.02)}),
    "a sum read again": (f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')} z = Neg(t)",
        XR, ", float16[b, 8] z", ["AddRMSNormQuantize"], {}),
    "a sum that is an output": (f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')}",
        XR, ", float16[b, 8] t", ["AddRMSNormQuantize"], {}),
    "two norms of one sum": (f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')} n2 = RMSNormalization(t, w2) q2 = QuantizeLinear<output_dtype = 17>(n2, s) z = DequantizeLinear<output_dtype = 10>(q2, s)",
        XR, ", float16[b, 8] z", ["AddRMSNormQuantize", "RMSNormQuantize"], {"w2": WEIGHTS["w"] + 1}),
    "a sum that broadcasts": (f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')}",
        f"{X}, float16[1, 8] r", "", ["Add", "RMSNormQuantize"], {}),
    "a bias": (f"t = Add(x, c) {NORM.replace('(x', '(t')} {QUANTISE.format('n')}",
        X, "", ["Add", "RMSNormQuantize"], {"c": WEIGHTS["w"]}),
    "a constant of the input's sizes": (f"t = Add(x, c) {NORM.replace('(x', '(t')} {QUANTISE.format('n')}",
        "float16[1, 8] x", "", ["Add", "RMSNormQuantize"], {"c": WEIGHTS["w"][None]}),
    "a large epsilon": (f"n = RMSNormalization<epsilon = 0.5>(x, w) {QUANTISE.format('n')}", X, "", ["RMSNormQuantize"], {}),
    "a scale with an axis": (f"{NORM} {QUANTISE.format('n')}", X, "", ["RMSNormQuantize"], {"s": np.array([0.02], np.float32)}),
    "a zero point of zero": (f"{NORM} q = QuantizeLinear(n, s, o) d = DequantizeLinear<output_dtype = 10>(q, s) y = MatMul(d, m)",
        X, "", ["RMSNormQuantize"], {"o": np.zeros((), ml_dtypes.float8_e4m3fn)}),
    "LayerNorm": (f"n = LayerNormalization<epsilon = 1e-6>(x, w, c) {QUANTISE.format('n')}",
        X, "", ["LayerNormQuantize"], {"c": WEIGHTS["w"]}),
    "LayerNorm of a sum": (f"t = Add(x, r) n = LayerNormalization(t, w, c) {QUANTISE.format('n')}",
        XR, "", ["AddLayerNormQuantize"], {"c": WEIGHTS["w"]}),
    "SwiGLU": (f"a = Swish(x) n = Mul(r, a) {QUANTISE.format('n')}", XR, "", ["SwiGLUQuantize"], {}),
    "a shape that is read": (f"t = Add(x, r) {NORM.replace('(x', '(t')} {QUANTISE.format('n')} h = Shape(n) z = Expand(t, h)",
        XR, ", float16[b, 8] z", ["AddRMSNormQuantize", "Shape", "Expand"], {}),
    "a gate whose shape is read": (f"g, u = Split<axis = -1, num_outputs = 2>(x) a = Swish(g) n = Mul(a, u) {QUANTISE.format('n')} h = Shape(n) z = Expand(g, h)",
        "float16[b, 16] x", ", float16[b, 8] z", ["Split", "SwiGLUQuantize", "Shape", "Expand"], {}),
    "SwiGLU by Sigmoid": (f"o = Sigmoid(x) a = Mul(o, x) n = Mul(a, r) {QUANTISE.format('n')}", XR, "", ["SwiGLUQuantize"], {}),
    "SwiGLU of halves by Sigmoid": (f"g, u = Split<axis = -1, num_outputs = 2>(x) o = Sigmoid(g) a = Mul(g, o) n = Mul(u, a) {QUANTISE.format('n')}",
        "float16[b, 16] x", "", ["SwiGLUPackedQuantize"], {}),
    "GeGLU by tanh": (f'a = Gelu<approximate = "tanh">(x) n = Mul(a, r) {QUANTISE.format("n")}', XR, "", ["GeGLUQuantize"], {}),
    "GeGLU of halves": (f"g, u = Split<axis = -1, num_outputs = 2>(x) a = Gelu(g) n = Mul(a, u) {QUANTISE.format('n')}",
        "float16[b, 16] x", "", ["GeGLUPackedQuantize"], {}),
    "the second half as the gate": (f"u, g = Split<axis = -1, num_outputs = 2>(x) a = Swish(g) n = Mul(a, u) {QUANTISE.format('n')}",
        "float16[b, 16] x", "", ["Split", "SwiGLUQuantize"], {}),
    "halves read again": (f"g, u = Split<axis = -1, num_outputs = 2>(x) a = Swish(g) n = Mul(a, u) {QUANTISE.format('n')} z = Neg(u)",
        "float16[b, 16] x", ", float16[b, 8] z", ["Split", "SwiGLUQuantize"], {}),
    "halves of another axis": (f"g, u = Split<axis = 0, num_outputs = 2>(x) a = Swish(g) n = Mul(a, u) {QUANTISE.format('n')}",
        "float16[6, 8] x", "", ["Split", "SwiGLUQuantize"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_what_is_folded(name):
    """The operators before the products, the graph's spec, and equal bits."""
    body, inputs, more, expected, weights = FOLDS[name]
    plain, model = (graph(body, inputs, more, **weights) for _ in range(2))
    folding = fold_epilogues(model)
    check_graph(model)
    check_quantized(model)
    assert folding.left == ()
    assert [
        o for o in operators(model) if o not in ("DequantizeLinear", "MatMul", "Neg")
    ] == expected
    scales = [n.inputs[-1] for n in model.graph if n.domain == "blockforge"]
    assert all(s.shape.numpy() == () and s.const_value.shape.numpy() == () for s in scales)
    feeds = {"x": numbers(6, 8, dtype=torch.float16)} if "[6, 8]" in inputs else {}
    if "[1, 8]" in inputs:
        feeds = {inputs[-1]: numbers(1, 8, dtype=torch.float16)}
    before, after = ran(plain, **feeds), ran(model, **feeds)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


LEFT = {
    "a second reader": (f"{NORM} {QUANTISE.format('n')} z = Neg(n)", X, ", float16[b, 8] z", "reads its result unquantised", {}),
    "two scales": (f"{NORM} {QUANTISE.format('n')} q2 = QuantizeLinear<output_dtype = 17>(n, s2) z = DequantizeLinear<output_dtype = 10>(q2, s2)",
        X, ", float16[b, 8] z", "two scales", {"s2": np.float32(0.03)}),
    "a scale per channel": (f"{NORM} q = QuantizeLinear<axis = 1, output_dtype = 17>(n, c) d = DequantizeLinear<axis = 1, output_dtype = 10>(q, c) y = MatMul(d, m)",
        X, "", r"its scale has shape \[8\]", {"c": np.full(8, 0.02, np.float32)}),
    "a graph output": (f"{NORM} {QUANTISE.format('n')}", X, ", float16[b, 8] n", "graph output", {}),
    "1 + w": (f"o = Add(w, one) n = RMSNormalization(x, o) {QUANTISE.format('n')}", X, "", "weight is computed", {"one": f16(1)}),
    "another axis": (f"n = RMSNormalization<axis = 1>(x, w) {QUANTISE.format('n')}", "float16[b, 2, 8] x", "", "axis 1, not the last of 3",
        {"w": np.ones((2, 8), f16)}),
    "int8": (f"{NORM} q = QuantizeLinear<output_dtype = 3>(n, s) d = DequantizeLinear<output_dtype = 10>(q, s) y = MatMul(d, m)",
        X, "", "quantised to int8", {}),
    "a computed scale": (f"{NORM} c = Neg(s) " + QUANTISE.format("n").replace("s)", "c)"), X, "", "no constant", {"s": np.float32(-0.02)}),
    "statistics in 16 bits": (f"n = RMSNormalization<stash_type = 10>(x, w) {QUANTISE.format('n')}", X, "", "not in FP32", {}),
    "no bias": (f"n = LayerNormalization(x, w) {QUANTISE.format('n')}", X, "", "bias is computed, or absent", {}),
    "an activation read again": (f"a = Swish(x) n = Mul(a, r) {QUANTISE.format('n')} z = Neg(a)", XR, ", float16[b, 8] z", "read elsewhere", {}),
    "a Sigmoid read again": (f"o = Sigmoid(x) a = Mul(o, x) n = Mul(a, r) {QUANTISE.format('n')} z = Neg(o)", XR, ", float16[b, 8] z", "read elsewhere", {}),
    "a Swish with a factor": (f"a = Swish<alpha = 1.5>(x) n = Mul(a, r) {QUANTISE.format('n')}", XR, "", "has a factor", {}),
    "a gate of one row": (f"a = Swish(x) n = Mul(a, r) {QUANTISE.format('n')}", f"{X}, float16[1, 8] r", "", "differ in type or shape", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    """One near miss a guard: the reason is told and the graph stays."""
    body, inputs, more, reason, weights = LEFT[name]
    if "[b, 2, 8]" in inputs:
        body = body.replace("y = MatMul(d, m)", "y = ReduceMax<keepdims = 0>(d, k)")
        weights = {**weights, "k": np.array([1])}
        model = model_from(f"g ({inputs}) => (float16[b, 8] y) {{ {body} }}", {**weights, "s": WEIGHTS["s"]})  # fmt: skip
    else:
        model = graph(body, inputs, more, **weights)
    before = operators(model)
    folding = fold_epilogues(model)
    assert folding.folded == {} and operators(model) == before and not model.functions
    assert len(folding.left) == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(folding.left[0])


@pytest.mark.parametrize("body", ["o = Sigmoid(x) n = Mul(o, r)", "o = Sigmoid(r) a = Mul(o, x) n = Mul(a, r)", "n = Neg(x)"])  # fmt: skip
def test_what_is_no_norm_and_no_gate(body):
    """GLU without x, the Sigmoid of another value: nothing to fold, and nothing to explain."""
    model = graph(f"{body} {QUANTISE.format('n')}", XR)
    before = operators(model)
    folding = fold_epilogues(model)
    assert (folding.folded, folding.left, operators(model)) == ({}, (), before)


def test_another_function_of_that_name_is_kept():
    model = graph(f"{NORM} {QUANTISE.format('n')}")
    other = ir.Function("blockforge", "RMSNormQuantize", graph=ir.Graph([], [], nodes=[]), attributes=[])  # fmt: skip
    model.functions[other.identifier()] = other
    assert "another RMSNormQuantize" in fold_epilogues(model).left[0]
    assert operators(model)[0] == "RMSNormalization"


@pytest.mark.parametrize(("opset", "folds"), [(24, True), (20, False)])
def test_a_body_of_another_opset_is_left(opset, folds):
    """Its QuantizeLinear would know no FP8."""
    text = f'<domain: "blockforge", opset_import: ["": {opset}]> SwiGLU (gate, up) => (y) {{ o = Sigmoid(gate) a = Mul(gate, o) y = Mul(a, up) }}'  # fmt: skip
    function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
    model = graph(f"n = Mul(x, r) {QUANTISE.format('n')}", XR)
    node = model.graph[0]
    call = ir.Node("blockforge", "SwiGLU", node.inputs, outputs=[ir.Value(name="n", type=node.outputs[0].type, shape=node.outputs[0].shape)])  # fmt: skip
    model.functions[function.identifier()] = function
    model.opset_imports["blockforge"] = 1
    model.graph.insert_before(node, call)
    node.outputs[0].replace_all_uses_with(call.outputs[0])
    model.graph.remove(node, safe=True)
    folding = fold_epilogues(model)
    assert operators(model)[0] == ("SwiGLUQuantize" if folds else "SwiGLU")
    assert [line.partition(": ")[2] for line in folding.left] == ([] if folds else ["its body is of opset 20"])  # fmt: skip


def test_a_folded_mask_is_refused(tmp_path):
    """What a folded operator quantises must feed products, as behind a QuantizeLinear."""
    model = graph(f"{NORM} {QUANTISE.format('n')} z = Neg(d)", X, ", float16[b, 8] z")
    fold_epilogues(model)
    save_model(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="Neg"):
        check_quantized(load_model(tmp_path / "m.onnx"))
