"""Random but true spellings of rotary embedding and attention, and one wrong step put into each."""

import numpy as np
import onnx
from hypothesis import strategies as st

from .spelling import Speller
from .spelling_assign import assign

HEADS, SIZE = 4, 8


def _angles(s: Speller, half: int) -> tuple[str, str]:
    """cos and sin [b, 1, s, half] of positions times frequencies."""
    positions = s.input("positions", "b", "s", dtype=onnx.TensorProto.FLOAT)
    angle = s.either(
        "Mul", s.op("Unsqueeze", positions, s.ints(1, 3)), s.constant(0.5 ** np.arange(half))
    )
    return s.op("Cos", angle), s.op("Sin", angle)


def _halves(s: Speller, x: str, width: int, interleaved: bool) -> list[str]:
    half = width // 2
    if interleaved:
        if s.draw(st.booleans()):
            return [s.slice(x, 3, i, 2**62, 2) for i in (0, 1)]
        view = s.op(
            "Reshape",
            x,
            s.ints(0, 0, 0, half, 2) if s.draw(st.booleans()) else s.ints(0, HEADS, -1, half, 2),
        )
        return [s.op("Gather", view, s.constant(i, np.int64), axis=4) for i in (0, 1)]
    if s.draw(st.booleans()):
        return s.op("Split", x, s.ints(half, half), outputs=2, axis=3)
    return [s.slice(x, -1, 0, half), s.slice(x, 3, half, 2**62)]


def rope(s: Speller) -> onnx.ModelProto:
    """Rotary embedding of x [b, 4, s, 8], on all lanes or the first 4."""
    x = s.input("x", "b", HEADS, "s", SIZE)
    width = s.pick(SIZE, SIZE // 2)
    interleaved = s.draw(st.booleans())
    half = width // 2
    turned, rest = x, ""
    if width < SIZE:
        turned, rest = s.slice(x, 3, 0, width), s.slice(x, -1, width, 2**62)
    cos, sin = _angles(s, half)
    if s.spoil == "one angle":
        sin = s.op("Sin", s.either("Mul", s.op("Cos", cos), s.number(0.5)))
    a, b = _halves(s, turned, width, interleaved)
    if s.spoil == "lanes swapped":
        a, b = b, a
    y = (
        _whole(s, turned, a, b, cos, sin)
        if not interleaved and s.draw(st.booleans())
        else _by_halves(s, turned, a, b, cos, sin, half, interleaved)
    )
    if rest:
        y = s.op("Concat", y, rest, axis=-1)
    extra = []
    if s.spoil == "escape":
        inner = next(n.output[0] for n in reversed(s.nodes) if n.op_type == "Mul")
        extra = [(inner, ("b", HEADS, "s", SIZE if inner and y == "" else None))]
    return s.model((y, ("b", HEADS, "s", SIZE)), *extra)


def _whole(s: Speller, x: str, a: str, b: str, cos: str, sin: str) -> str:
    """x * cos + rotate_half(x) * sin, with tables as wide as x."""
    wide = [s.op("Concat", t, t, axis=-1) for t in (cos, sin)]
    if s.spoil == "halves differ":
        wide[0] = s.op("Concat", cos, s.op("Cos", cos), axis=-1)
    turned = s.op("Concat", b if s.spoil == "sign" else s.op("Neg", b), a, axis=3)
    return s.either("Add", s.either("Mul", x, wide[0]), s.either("Mul", turned, wide[1]))


def _by_halves(
    s: Speller, x: str, a: str, b: str, cos: str, sin: str, half: int, interleaved: bool
) -> str:
    other = s.op("Cos", cos) if s.spoil == "halves differ" else cos
    first = s.op(
        "Add" if s.spoil == "sign" else "Sub", s.either("Mul", a, cos), s.either("Mul", b, sin)
    )
    second = s.either("Add", s.either("Mul", b, other), s.either("Mul", a, sin))
    if s.draw(st.booleans()):
        base = s.op("Expand", s.constant(0.0), s.op("Shape", x))
        whole = range(2 * half)
        places = (whole[::2], whole[1::2]) if interleaved else (whole[:half], whole[half:])
        for value, lanes in zip((first, second), places, strict=True):
            base = assign(s, base, value, lanes)
        return base
    if not interleaved:
        return s.op("Concat", first, second, axis=s.pick(-1, 3))
    parts = [s.op("Unsqueeze", v, s.ints(s.pick(-1, 4))) for v in (first, second)]
    return s.op("Reshape", s.op("Concat", *parts, axis=-1), s.ints(0, HEADS, -1, 2 * half))


def attention(s: Speller) -> onnx.ModelProto:
    """softmax(scale * Q K^T + mask) V for 4 heads of 8, keys grouped at times."""
    groups = s.pick(1, 2)
    kv = HEADS // groups
    q = s.input("q", "b", HEADS, "s", SIZE)
    k, v = s.input("k", "b", kv, "t", SIZE), s.input("v", "b", kv, "t", SIZE)
    if groups > 1:
        k, v = (_repeat(s, t, kv, groups) for t in (k, v))
    scale = s.pick(SIZE**-0.5, 0.3, 1.0)
    place = s.pick("q", "scores", "both")
    if place == "q":
        q = s.times(q, scale)
    elif place == "both":
        q, k = s.times(q, scale**0.5), s.times(k, scale**0.5)
    scores = _products(s, q, k)
    if place == "scores" and scale != 1.0:
        scores = s.times(scores, scale)
    if s.draw(st.booleans()):
        cap = 5.0
        scores = s.times(s.op("Tanh", s.times(scores, 1 / cap)), cap)
    if s.draw(st.booleans()):
        mask = s.input("mask", *s.pick(("b", 1, "s", "t"), (1, 1, "s", "t"), ("s", "t")))
        scores = s.either("Add", scores, mask)
    if s.spoil == "other axis":
        weights = s.op("Softmax", scores, axis=2)
    elif s.draw(st.booleans()):
        shifted = s.op("Sub", scores, s.reduce("ReduceMax", scores, 3))
        weights = s.op("Softmax", shifted, axis=-1)
    else:
        weights = _softmax(s, scores)
    if s.spoil == "no softmax":
        weights = scores
    extra = [(weights, ("b", HEADS, "s", "t"))] if s.spoil == "escape" else []
    if s.spoil == "weights changed":
        weights = s.op("Mul", weights, weights)
    form = s.pick("matmul", "einsum", "ellipsis", "values first")
    if form == "matmul":
        y = s.op("MatMul", weights, v)
    elif form == "values first":
        y = s.op("Einsum", v, weights, equation="bhtd,bhst->bhsd")
    else:
        equation = "bhst,bhtd->bhsd" if form == "einsum" else "...st,...td->...sd"
        y = s.op("Einsum", weights, v, equation=equation)
    return s.model((y, ("b", HEADS, "s", SIZE)), *extra)


def _products(s: Speller, q: str, k: str) -> str:
    form = s.pick("transpose", "transposed", "keys first", "einsum")
    if form == "transpose":
        return s.op("MatMul", q, s.op("Transpose", k, perm=[0, 1, 3, 2]))
    if form == "transposed":
        product = s.op("MatMul", k, s.op("Transpose", q, perm=[0, 1, 3, 2]))
        return s.op("Transpose", product, perm=[0, 1, 3, 2])
    if form == "keys first":
        return s.op("Einsum", k, q, equation="bhtd,bhsd->bhst")
    equation = s.pick("bhsd,bhtd->bhst", "abic,abjc->abij", "...sd,...td->...st")
    return s.op("Einsum", q, k, equation=equation)


def _softmax(s: Speller, scores: str) -> str:
    """As one operator or in exponentials, over the last axis."""
    form = s.pick("softmax", "exponentials", "logarithm", "log of the sum")
    if form == "exponentials":
        power = s.op("Exp", s.op("Sub", scores, s.reduce("ReduceMax", scores, 3)))
        return s.op("Div", power, s.reduce("ReduceSum", power, 3))
    if form == "logarithm":
        return s.op("Exp", s.op("LogSoftmax", scores, axis=s.pick(-1, 3)))
    if form == "log of the sum":
        return s.op("Exp", s.op("Sub", scores, s.reduce("ReduceLogSumExp", scores, 3)))
    return s.op("Softmax", scores, axis=s.pick(-1, 3))


def _repeat(s: Speller, value: str, heads: int, groups: int) -> str:
    """Every key head for `groups` query heads in a row."""
    form = s.pick("expand", "tile", "gather", "concat")
    if form == "gather":
        return s.op(
            "Gather", value, s.constant(np.repeat(np.arange(heads), groups), np.int64), axis=1
        )
    wide = s.op("Unsqueeze", value, s.ints(2))
    if form == "expand":
        wide = s.op("Expand", wide, s.ints(1, 1, groups, 1, 1))
    elif form == "tile":
        wide = s.op("Tile", wide, s.ints(1, 1, groups, 1, 1))
    else:
        wide = s.op("Concat", *[wide] * groups, axis=2)
    size = s.op("Shape", value)
    parts = [s.op("Gather", size, s.ints(i), axis=0) for i in (0, 2, 3)]
    return s.op(
        "Reshape",
        wide,
        s.op("Concat", parts[0], s.ints(heads * groups), parts[1], parts[2], axis=0),
    )
