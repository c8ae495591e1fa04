"""Two linears, or a norm and its linears, with whatever may stand between them, and one channel planted far out.

x [B, 6, 16] -> writer -> between -> reader -> y [B, 6, 16]; the writer's channel times `size`, the reader's over it:
the graph computes nearly the same numbers as without
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .decoders import INNER, H, Shape, Writer, model_of

CHANNEL = 3
Planted = dict[
    str, tuple[int, tuple[int, ...], int]
]  # weight -> (axis, places, +1: made there, -1: read there)


@dataclass(frozen=True)
class Chain:
    """One pair: nodes from x to y, where the channel is planted, and the values that then hold it."""

    build: Callable[[Writer], str]
    planted: Planted
    holds: int
    norm: str = "rms"
    bias: bool = False
    fuse: bool = True


def model(chain: Chain, size: float = 1.0) -> onnx.ModelProto:
    """The chain, its planted channel `size` times as large."""
    w = Writer(Shape(norm=chain.norm, bias=chain.bias))
    y = w.op("Identity", chain.build(w), name="y")
    for index, tensor in enumerate(w.weights):
        if tensor.name in chain.planted:
            axis, places, sign = chain.planted[tensor.name]
            numbers = numpy_helper.to_array(tensor).astype(np.float64)
            np.moveaxis(numbers, axis, 0)[list(places)] *= float(size) ** sign
            w.weights[index] = numpy_helper.from_array(numbers.astype(np.float32), tensor.name)
    return model_of(w, [("x", TensorProto.FLOAT, ["batch", 6, H])], [(y, H)], 6)


def spread(w: Writer) -> str:
    """The input through one linear: no graph input is read by what is under test."""
    return w.linear("x", "first", H, H)


def direct(w):
    return w.linear(w.linear(spread(w), "up", H, INNER), "down", INNER, H)


def relu(w):
    return w.linear(w.op("Relu", w.linear(spread(w), "up", H, INNER)), "down", INNER, H)


def moved(w):
    up = w.op("Reshape", w.linear(spread(w), "up", H, INNER), ints(w, 0, 0, 4, 8))
    up = w.op("Transpose", w.op("Identity", up), perm=[0, 2, 1, 3])
    up = w.op("Reshape", w.op("Transpose", up, perm=[0, 2, 1, 3]), ints(w, 0, 0, -1))
    return w.linear(up, "down", INNER, H)


def gemm(w):
    x = w.op("Reshape", spread(w), ints(w, -1, H))
    up = w.op("Gemm", x, w.weight("up.weight", INNER, H), w.weight("up.bias", INNER), transB=1)
    down = w.op("Gemm", up, w.weight("down.weight", H, INNER), transB=1)
    return w.op("Reshape", down, ints(w, -1, 6, H))


def transposed(w):
    turned = w.op("Transpose", w.weight("up.weight", INNER, H), perm=[1, 0])
    return w.linear(w.op("MatMul", spread(w), turned), "down", INNER, H)


def swiglu(w, up_first=False):
    x = spread(w)
    gate, up = (w.linear(x, name, H, INNER) for name in ("gate", "up"))
    silu = w.op("Mul", gate, w.op("Sigmoid", gate))
    return w.linear(w.op("Mul", *((up, silu) if up_first else (silu, up))), "down", INNER, H)


def geglu(w):
    x = spread(w)
    gate, up = (w.linear(x, name, H, INNER) for name in ("gate", "up"))
    return w.linear(w.op("Mul", w.op("Gelu", gate), up), "down", INNER, H)


def packed_gate(w):
    both = w.linear(spread(w), "gate_up", H, 2 * INNER)
    gate, up = w.split(both, INNER, INNER)
    silu = w.op("Mul", gate, w.op("Sigmoid", gate))
    return w.linear(w.op("Mul", silu, up), "down", INNER, H)


def ints(w, *numbers):
    return w.number(list(numbers), np.int64)


def attend(w, q, k, v, kv_heads):
    heads = {"q_num_heads": 4, "kv_num_heads": kv_heads}
    return w.linear(w.op("Attention", q, k, v, is_causal=1, **heads), "o", 2 * H, H)


def attention(w, kv_heads=4):
    x = spread(w)
    sizes = {"q": 2 * H, "k": 8 * kv_heads, "v": 8 * kv_heads}
    return attend(w, *(w.linear(x, name, H, size) for name, size in sizes.items()), kv_heads)


def grouped(w):
    return attention(w, kv_heads=2)


def apart(w):
    """As Hugging Face writes it: heads on an axis of their own, four queries' to two of keys and values."""
    x, heads = spread(w), {"q": 4, "k": 2, "v": 2}
    q, k, v = (
        w.op("Transpose", w.op("Reshape", w.linear(x, n, H, 8 * c), ints(w, 0, 0, c, 8)), perm=[0, 2, 1, 3])
        for n, c in heads.items()
    )  # fmt: skip
    y = w.op("Transpose", w.op("Attention", q, k, v, is_causal=1), perm=[0, 2, 1, 3])
    return w.linear(w.op("Reshape", y, ints(w, 0, 0, 2 * H)), "o", 2 * H, H)


def spelled(w):
    x = spread(w)
    q, k, v = (w.linear(x, name, H, H) for name in "qkv")
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 2, 1]))
    shares = w.op("Softmax", w.op("Mul", scores, w.number(0.25)), axis=-1)
    return w.linear(w.op("MatMul", shares, v), "o", H, H)


def packed_attention(w):
    q, k, v = w.split(w.linear(spread(w), "qkv", H, 4 * H), 2 * H, H, H)
    return attend(w, q, k, v, 2)


def normed(w):
    x = w.norm(spread(w), "norm")
    return w.op("Add", w.linear(x, "one", H, H), w.linear(x, "two", H, H))


def summed(w):
    """A residual sum that has another reader: fused, one Add*Norm operator."""
    x = w.op("Add", w.linear("x", "first", H, H), "x")
    x, skip = w.norm(x, "norm"), x
    return w.op("Add", w.linear(w.op("Mul", x, w.number(0.5)), "one", H, H), skip)


UP = {
    "up.weight": (1, (CHANNEL,), 1),
    "up.bias": (0, (CHANNEL,), 1),
    "down.weight": (0, (CHANNEL,), -1),
}
HEAD = {
    "v.weight": (1, (CHANNEL,), 1),
    "v.bias": (0, (CHANNEL,), 1),
    "o.weight": (0, (CHANNEL,), -1),
}
GROUPS = HEAD | {"o.weight": (0, (CHANNEL, CHANNEL + 8), -1)}  # heads of 8, two to each of v
NORM = {"norm.weight": (0, (CHANNEL,), 1), "norm.bias": (0, (CHANNEL,), 1)} | {
    f"{name}.weight": (0, (CHANNEL,), -1) for name in ("one", "two")
}
CHAINS = {
    "linear": Chain(direct, UP, 1),
    "linear with bias": Chain(direct, UP, 2, bias=True),
    "relu": Chain(relu, UP, 2),
    "moves": Chain(moved, UP, 6),
    "gemm": Chain(gemm, {"up.weight": (0, (CHANNEL,), 1), "up.bias": (0, (CHANNEL,), 1), "down.weight": (1, (CHANNEL,), -1)}, 1),
    "transposed weight": Chain(transposed, UP | {"up.weight": (0, (CHANNEL,), 1)}, 1),
    "swiglu": Chain(swiglu, UP, 2),
    "swiglu spelled": Chain(swiglu, UP, 2, fuse=False),
    "swiglu spelled, up first": Chain(lambda w: swiglu(w, True), UP, 3, fuse=False, bias=True),
    "geglu": Chain(geglu, UP, 2),
    "geglu spelled": Chain(geglu, UP, 2, fuse=False),
    "gate and up packed": Chain(packed_gate, {"gate_up.weight": (1, (INNER + CHANNEL,), 1), "down.weight": (0, (CHANNEL,), -1)}, 3),
    "attention": Chain(attention, HEAD, 3, bias=True),
    "attention apart, grouped": Chain(apart, GROUPS, 6),
    "attention spelled": Chain(spelled, HEAD, 2, fuse=False),
    "q, k and v packed": Chain(packed_attention, {"qkv.weight": (1, (3 * H + CHANNEL,), 1), "o.weight": GROUPS["o.weight"]}, 3),
    "grouped attention": Chain(grouped, GROUPS, 2),
    "rms norm": Chain(normed, NORM, 1),
    "rms norm spelled": Chain(normed, NORM, 1, norm="spelled_rms", fuse=False),
    "layer norm": Chain(normed, NORM, 1, norm="layer"),
    "layer norm spelled": Chain(normed, NORM, 2, norm="spelled_layer", fuse=False),
    "sum and rms norm": Chain(summed, NORM, 2),
    "sum and layer norm": Chain(summed, NORM, 2, norm="layer"),
}  # fmt: skip
