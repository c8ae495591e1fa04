"""Packing: the numbers stay, the names stay, and what may not be packed is not."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from quantize_graphs import exact, model_from, numbers

from blockforge.export.linears.find import find_linears
from blockforge.export.linears.pack import pack_linears, packed_name
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.graph.spec import check_graph


def weight(rows, columns, seed):
    return numbers(rows, columns, seed=seed).numpy()


def packed(model, **options):
    found = pack_linears(model, find_linears(model, QuantizeOptions(**options)))
    return [x.name for x in found], [n.op_type for n in model.graph]


QKV = """g (float[b, 4] x) => (float[b, 6] q, float[b, 2] k, float[b, 2] v) {
    q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) }"""
QKV_WEIGHTS = {"wq": weight(4, 6, 1), "wk": weight(4, 2, 2), "wv": weight(4, 2, 3)}
BIASED = """g (float[b, 4] x) => (float[b, 6] q, float[b, 2] k) {
    p = MatMul(x, wq) q = Add(p, bq) r = MatMul(x, wk) k = Add(bk, r) }"""
BIASES = {"bq": weight(1, 6, 4)[0], "bk": weight(1, 2, 5)[0]}
GEMM = """g (float[b, 4] x) => (float[b, 6] q, float[b, 2] k) {
    q = Gemm <transB = 1> (x, wq, bq) k = Gemm <transB = 1> (x, wk, bk) }"""


@pytest.mark.parametrize(
    ("text", "weights", "nodes"),
    [
        (QKV, QKV_WEIGHTS, ["MatMul", "Split"]),
        (BIASED, {k: QKV_WEIGHTS[k] for k in ("wq", "wk")} | BIASES, ["MatMul", "Add", "Split"]),
        (GEMM, {k: QKV_WEIGHTS[k].T for k in ("wq", "wk")} | BIASES, ["Gemm", "Split"]),
    ],
)
def test_linears_of_one_value_become_one(text, weights, nodes):
    feeds = {"x": numbers(5, 4)}
    before = exact(model_from(text, weights), feeds)
    model = model_from(text, weights)
    names, operators = packed(model)
    assert operators == nodes and len(names) == 1
    check_graph(model)
    after = exact(model, feeds)
    assert list(after) == list(before)
    for name, expected in before.items():
        torch.testing.assert_close(
            after[name], expected, rtol=1e-14, atol=1e-14
        )  # another order of sums
    assert not set(weights) & set(model.graph.initializers)


def test_one_bias_without_the_other_stays_behind_the_split():
    text = "g (float[b, 4] x) => (float[b, 6] q, float[b, 2] k) { p = MatMul(x, wq) q = Add(p, bq) k = MatMul(x, wk) }"
    weights = {"wq": QKV_WEIGHTS["wq"], "wk": QKV_WEIGHTS["wk"], "bq": BIASES["bq"]}
    feeds = {"x": numbers(5, 4)}
    before, model = exact(model_from(text, weights), feeds), model_from(text, weights)
    assert packed(model)[1] == ["MatMul", "Split", "Add"]
    for name, value in exact(model, feeds).items():
        torch.testing.assert_close(value, before[name], rtol=1e-14, atol=1e-14)


def test_the_packed_weight_is_put_together_when_it_is_read():
    model = model_from(QKV, QKV_WEIGHTS)
    packed(model)
    (tensor,) = [v.const_value for v in model.graph.initializers.values() if len(v.shape) == 2]
    assert isinstance(tensor, ir.LazyTensor)
    np.testing.assert_array_equal(
        tensor.numpy(), np.concatenate(list(QKV_WEIGHTS.values()), axis=1)
    )


SHARED = """g (float[b, 4] x) => (float[b, 4] q, float[b, 4] k, float[4, 4] t) {
    q = MatMul(x, wq) k = MatMul(x, wk) t = Transpose(wk) }"""
MIXED = """g (float[b, 4] x) => (float[b, 4] q, float[b, 4] k) {
    q = MatMul(x, wq) k = Gemm(x, wk) }"""
OTHER = """g (float[b, 4] x) => (float[b, 4] q, float[b, 4] k) {
    z = Relu(x) q = MatMul(x, wq) k = MatMul(z, wk) }"""
SQUARE = {"wq": weight(4, 4, 1), "wk": weight(4, 4, 2)}


@pytest.mark.parametrize("text", [SHARED, MIXED, OTHER])
def test_near_misses_stay_apart(text):
    """A weight that something else reads, two operators, two inputs."""
    model = model_from(text, SQUARE)
    before = [n.op_type for n in model.graph]
    assert len(packed(model)[0]) == 2 and [n.op_type for n in model.graph] == before


def test_what_stays_high_is_not_packed():
    model = model_from(QKV, QKV_WEIGHTS)
    names, operators = packed(model, keep=("wv",))
    assert operators == ["MatMul", "Split", "MatMul"] and len(names) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layers.0.attn.q_proj", "layers.0.attn.k_proj"], "layers.0.attn.q_proj_k_proj"),
        (["layers.0.mlp.gate", "layers.0.mlp.gate_up"], "layers.0.mlp.gate_gate_up"),
        (["/m/a/q", "/m/a/k", "/m/a/v"], "/m/a/q_k_v"),
        (["node_1", "node_2"], "node_1_node_2"),
    ],
)
def test_packed_names(names, expected):
    assert packed_name(names) == expected
