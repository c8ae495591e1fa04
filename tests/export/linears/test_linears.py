"""Which products are linears, which are not, and why one is left alone."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from quantize_graphs import CORPUS, model_from

from blockforge.core.errors import UsageError
from blockforge.export.linears.find import QUANTIZED_WEIGHT, find_linears, share_of_flops
from blockforge.export.quantize.options import QuantizeOptions

W = np.ones((4, 6), np.float32)


def only(model, **options):
    (found,) = find_linears(model, QuantizeOptions(**options))
    return found


@pytest.mark.parametrize(
    ("node", "weight", "transposed", "wants"),
    [
        ("y = MatMul(x, w)", W, False, False),
        ("y = Gemm(x, w)", W, False, False),
        ("y = Gemm <transB = 1> (x, w)", W.T, True, True),
        ("t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t)", W.T, True, False),
        ("t = Transpose (w) y = Gemm <transB = 1> (x, t)", W, False, True),
    ],
)
def test_every_spelling_of_a_linear(node, weight, transposed, wants):
    found = only(model_from(f"g (float[b, 4] x) => (float[b, 6] y) {{ {node} }}", {"w": weight}))
    assert (found.size_in, found.size_out, found.reason) == (4, 6, "")
    assert (found.transposed, found.wants_transposed) == (transposed, wants)
    assert found.axis_out == (0 if wants else 1)


@pytest.mark.parametrize(
    ("graph", "weights"),
    [
        ("(float[b, 4] x, float[4, 4] w) => (float[b, 4] y) { y = MatMul(x, w) }", {}),
        ("(float[b, 3, 4] x) => (float[b, 3, 3] y) { t = Transpose<perm=[0,2,1]>(x) y = MatMul(x, t) }", {}),
        ("(float[b, 4, 2] x) => (float[b, 4, 2] y) { y = MatMul(w, x) }", {"w": np.ones((4, 4), np.float32)}),
        ("(float[b, 4] x) => (float[b] y) { y = MatMul(x, w) }", {"w": np.ones(4, np.float32)}),
        ("(float[b, 2, 4] x) => (float[b, 2, 6] y) { y = MatMul(x, w) }", {"w": np.ones((2, 4, 6), np.float32)}),
        ("(int32[b, 4] x) => (int32[b, 6] y) { y = MatMul(x, w) }", {"w": np.ones((4, 6), np.int32)}),
    ],
)  # fmt: skip
def test_products_that_are_none(graph, weights):
    """Two activations, a weight on the left, a vector, a batch of matrices, integers."""
    assert find_linears(model_from(f"g {graph}", weights), QuantizeOptions()) == []


@pytest.mark.parametrize(
    ("node", "word"),
    [
        ("y = Gemm <transA = 1> (x, w)", "transposed"),
        ("y = Gemm <alpha = 0.5> (x, w)", "alpha"),
        ("y = Gemm <beta = 2.0> (x, w, c)", "beta"),
    ],
)
def test_a_gemm_that_is_more_than_a_linear_is_left_with_its_reason(node, word):
    weights = {"w": W} | ({"c": np.ones(6, np.float32)} if "c)" in node else {})
    size = "4, 4" if "transA" in node else "b, 4"
    found = only(model_from(f"g (float[{size}] x) => (float[n, 6] y) {{ {node} }}", weights))
    assert word in found.reason


TIED = """g (int64[b, s] ids) => (float[b, s, 8] logits) {
    x = Gather(e, ids) h = MatMul(x, w) t = Transpose <perm = [1, 0]> (e)
    raw = MatMul(h, t) capped = Tanh(raw) logits = Mul(capped, cap) }"""
TIED_WEIGHTS = {
    "e": np.ones((8, 4), np.float32),
    "w": np.ones((4, 4), np.float32),
    "cap": np.float32(30),
}


def test_the_head_is_a_choice():
    reasons = [x.reason for x in find_linears(model_from(TIED, TIED_WEIGHTS), QuantizeOptions())]
    assert reasons == ["", "it gives the logits (head)"]
    chosen = find_linears(model_from(TIED, TIED_WEIGHTS), QuantizeOptions(head=True))
    assert [x.reason for x in chosen] == ["", ""]


def test_a_block_that_ends_in_a_linear_has_no_head():
    assert (
        only(
            model_from("g (float[b, 4] x) => (float[b, 6] y) { y = MatMul(x, w) }", {"w": W})
        ).reason
        == ""
    )


@pytest.mark.parametrize("patterns", [("layers.1.*",), ("*_proj",), ("layers.1.q_proj/MatMul",)])
def test_keep_and_only_take_names_and_patterns(patterns):
    model = model_from("g (float[b, 4] x) => (float[b, 6] y) { y = MatMul(x, w) }", {"w": W})
    model.graph[0].name = "layers.1.q_proj/MatMul"
    assert only(model).name == "layers.1.q_proj"
    assert "keep" in only(model, keep=patterns).reason
    assert only(model, only=patterns).reason == ""
    another = model_from(TIED, TIED_WEIGHTS)
    reasons = [x.reason for x in find_linears(another, QuantizeOptions(only=("w",), head=True))]
    assert reasons == ["", "not among those asked for (only)"]


@pytest.mark.parametrize("key", ["keep", "only"])
def test_a_pattern_that_fits_nothing_is_refused_with_the_nearest_name(key):
    model = model_from("g (float[b, 4] x) => (float[b, 6] y) { y = MatMul(x, w) }", {"w": W})
    model.graph[0].name = "layers.1.q_proj/MatMul"
    patterns = ("layers.1.q_proj", "layers.1.q_porj")
    with pytest.raises(UsageError, match=rf"{key} 'layers.1.q_porj'.*: layers.1.q_proj$"):
        find_linears(model, QuantizeOptions(**{key: patterns}))
    empty = model_from("g (float[b, 4] x) => (float[b, 4] y) { y = Relu(x) }", {})
    assert find_linears(empty, QuantizeOptions(**{key: patterns})) == []


def test_a_quantised_weight_is_recognised():
    text = "g (float[b, 4] x) => (float[b, 6] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }"
    model = model_from(text, {"q": np.ones((4, 6), np.int8), "s": np.float32(0.5)})
    weight = model.graph[0].outputs[0]
    weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([4, 6])
    assert only(model).reason == QUANTIZED_WEIGHT


def test_shares_of_the_work_add_up():
    shares = dict(share_of_flops(find_linears(model_from(TIED, TIED_WEIGHTS), QuantizeOptions())))
    assert list(shares.values()) == [16 / 48, 32 / 48]


@pytest.mark.parametrize(
    ("file", "linears"),
    [("llama__sdpa__d23__fp16", 14), ("bert__sdpa__ts17__fp32", 12), ("gpt2__sdpa__d18__fp32", 8), ("t5v11__sdpa__d24__fp32", 14)],
)  # fmt: skip
def test_exports_of_hugging_face_models(file, linears):
    """The numbers are the weights of each model: 7 a Llama layer, 6 a BERT layer, 4 a GPT-2 layer."""
    path = CORPUS / f"{file}.onnx"
    if not path.exists():
        pytest.skip("BLOCKFORGE_CORPUS names no folder of exported graphs")
    found = find_linears(ir.from_proto(onnx.load(path)), QuantizeOptions())
    assert len(found) == linears and not any(x.reason for x in found)
