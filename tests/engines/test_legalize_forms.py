"""Forms beside Attention's own that legalisation rewrites: numbers equal by the float64 evaluator, smallest change."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto
from preflight_cases import N, attention, attention_inside, graph, layernorm, rotary

from blockforge.engines.legalize import legalize
from blockforge.engines.target import Target
from blockforge.graph.evaluator import TypedEvaluator

RTX = Target.parse("tensorrt-rtx:sm89")


def rewritten(serialised):
    before = ir.from_proto(onnx.load_from_string(serialised))
    return before, *legalize(before, RTX)


def run(model, feeds):
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    return TypedEvaluator(model, exact=True).run(tensors).outputs


ROUNDED = 2.0**-8  # the spelled-out scale is rounded to fp16 (2**-11), on scores of up to 8


def same(before, after, feeds, error=1e-6):
    want, got = run(before, feeds), run(after, feeds)
    assert want.keys() == got.keys()
    for name, value in want.items():
        np.testing.assert_allclose(
            np.asarray(got[name], np.float64), np.asarray(value, np.float64), rtol=error, atol=error
        )


def qkv(random, dtype=np.float16, heads=(4, 2, 2), size=64):
    return {
        n: random.standard_normal((2, h, 5, size)).astype(dtype)
        for n, h in zip("qkv", heads, strict=True)
    }


@pytest.mark.parametrize("hidden", [np.finfo(np.float32).min, -np.inf, -1e9, -3.0])
def test_a_mask_of_another_type_keeps_hiding(hidden):
    before, legal, changed = rewritten(
        attention(more={"m": ("fp32", ["b", 1, "s", "s"])}, ins="q k v m")
    )
    assert changed == ("att: mask cast from FLOAT to FLOAT16",)
    feeds = qkv(np.random.default_rng(0))
    feeds["m"] = np.broadcast_to(
        np.where(np.triu(np.ones((5, 5)), 1), hidden, 0), (2, 1, 5, 5)
    ).astype(np.float32)
    same(before, legal, feeds)


def test_a_mask_of_the_right_type_stays():
    _, legal, changed = rewritten(
        attention(more={"m": ("fp16", ["b", 1, "s", "s"])}, ins="q k v m")
    )
    assert not changed and [n.op_type for n in legal.graph] == ["Attention"]


@pytest.mark.parametrize("batch", [1, 3])
def test_rotary_caches_of_batch_1(batch):
    _, legal, changed = rewritten(rotary(1))
    assert changed == ("n: cos and sin expanded to the batch",)
    assert [n.op_type for n in legal.graph].count("Expand") == 2
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, 2, 5, 64)).astype(np.float16)
    cos, sin = (random.standard_normal((1, 5, 32)).astype(np.float16) for _ in "cs")
    got = run(legal, {"x": x, "c": cos, "z": sin})["y"]
    first, second = np.split(x.astype(np.float64), 2, -1)  # ONNX RotaryEmbedding, halves
    c, s = cos.astype(np.float64)[:, None], sin.astype(np.float64)[:, None]
    want = np.concatenate([first * c - second * s, second * c + first * s], -1)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("model", [rotary("b"), rotary(1, ("fp16", [1, 2, "s", 64]))])
def test_near_miss_rotary_caches_that_fit(model):
    assert not rewritten(model)[2]


def test_unread_statistics_are_dropped_and_read_ones_stay():
    _, legal, changed = rewritten(layernorm(["y", "u", "v"]))
    assert changed and [len(n.outputs) for n in legal.graph] == [1]
    _, legal, changed = rewritten(layernorm(["y", "m"]))
    assert not changed and [len(n.outputs) for n in legal.graph] == [2]


def test_attention_in_a_loop_keeps_its_numbers():
    before, legal, changed = rewritten(attention_inside("Loop"))
    assert changed == ("att: inside a subgraph, spelled out as MatMul and Softmax",)
    assert "Attention" not in {n.op_type for n in legal.graph.all_nodes()}
    q = np.random.default_rng(0).standard_normal((1, 2, 5, 64)).astype(np.float16)
    same(before, legal, {"q": q}, ROUNDED)


def test_a_negative_scale_is_spelled_out_too():
    before, legal, _ = rewritten(attention(softcap=5.0, scale=-0.3))
    same(before, legal, qkv(np.random.default_rng(0)), ROUNDED)


@pytest.mark.parametrize("size", [8, 9, 256, 264])
def test_head_sizes_without_a_kernel_are_marked(size):
    _, legal, _ = rewritten(attention(d=size))
    marked = ["TRT_decomposable" in n.attributes for n in legal.graph]
    assert marked == [size in (8, 264)]


def test_an_unrelated_graph_is_not_touched():
    cast = N("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)
    model = graph([cast], {"x": ("fp32", ["b", 8])}, {"y": ("fp16", ["b", 8])})
    assert not rewritten(model)[2]
