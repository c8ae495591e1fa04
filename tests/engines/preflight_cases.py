"""For each row of the preflight table: a graph that has the form, and its near misses that do not."""

import itertools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

f16, bf16, e4m3 = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
NAMES = {
    "fp32": T.FLOAT, "fp16": T.FLOAT16, "bf16": T.BFLOAT16, "fp64": T.DOUBLE, "i64": T.INT64, "i32": T.INT32,
    "i16": T.INT16, "i8": T.INT8, "bool": T.BOOL, "fp8": T.FLOAT8E4M3FN, "u32": T.UINT32,
}  # fmt: skip
N = h.make_node


@dataclass(frozen=True)
class Case:
    """A graph with the form `bad`, and graphs beside it without; arch: where it is built."""

    row: str
    bad: bytes
    good: tuple[bytes, ...]
    arch: str = "SM89"
    good_arch: str = "SM89"


def graph(nodes, ins, outs, weights=None, opset=24, functions=()):
    """Serialised model; ins and outs: name -> (type, dims)."""
    edges = [
        [h.make_tensor_value_info(n, NAMES.get(t, t), d) for n, (t, d) in edge.items()]
        for edge in (ins, outs)
    ]
    tensors = [
        v if isinstance(v, onnx.TensorProto) else numpy_helper.from_array(np.asarray(v), n)
        for n, v in (weights or {}).items()
    ]
    opsets = [
        h.make_opsetid(d, v)
        for d, v in (("", opset), ("com.microsoft", 1), ("other", 1), ("blockforge", 1))
    ]
    model = h.make_model(
        h.make_graph(nodes, "g", *edges, tensors),
        opset_imports=opsets,
        ir_version=11,
        functions=list(functions),
    )
    return onnx.shape_inference.infer_shapes(model).SerializeToString()


def attention(
    t="fp16",
    d=64,
    heads=4,
    kv=2,
    keys="s",
    more=None,
    ins="q k v",
    outs="y",
    dv=None,
    opset=24,
    name="att",
    **a,
):
    """One 4-D Attention; ins and outs: value names by position, `_` where absent."""
    inputs = {
        "q": (t, ["b", heads, "s", d]),
        "k": (t, ["b", kv, keys, d]),
        "v": (t, ["b", kv, keys, dv or d]),
        **(more or {}),
    }
    known = {
        "y": (t, ["b", heads, "s", dv or d]),
        "pk": (t, ["b", kv, None, d]),
        "pv": (t, ["b", kv, None, d]),
        "qk": (t, ["b", heads, "s", keys]),
    }
    blank = [[n.replace("_", "") for n in names.split()] for names in (ins, outs)]
    read = [n for n in blank[1] if n in known]
    return graph(
        [N("Attention", *blank, name=name, **a)], inputs, {n: known[n] for n in read}, opset=opset
    )  # fmt: skip


MASK = {"m": ("fp16", ["b", 1, "s", "s"])}
PAST = {"a": ("fp16", ["b", 2, "p", 64]), "c": ("fp16", ["b", 2, "p", 64])}
THREE_D = {n: ("fp16", ["b", "s", 128]) for n in "qkv"}


def attention_3d(**a):
    return graph(
        [N("Attention", ["q", "k", "v"], ["y"], name="att", **a)],
        THREE_D,
        {"y": ("fp16", ["b", "s", 128])},
    )


def attention_inside(kind):
    shape = ["b", 2, "s", 64]
    info = h.make_tensor_value_info
    if kind == "If":
        inner = N("Attention", ["q", "q", "q"], ["ya"], name="att")
        then = h.make_graph([inner], "t", [], [info("ya", T.FLOAT16, shape)])
        other = h.make_graph(
            [N("Identity", ["q"], ["yb"])], "e", [], [info("yb", T.FLOAT16, shape)]
        )
        node = N("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if")
        return graph([node], {"c": ("bool", []), "q": ("fp16", shape)}, {"y": ("fp16", shape)})
    nodes = [N("Attention", ["s", "s", "s"], ["so"], name="att"), N("Identity", ["on"], ["go"])]
    ins = [info("i", T.INT64, []), info("on", T.BOOL, []), info("s", T.FLOAT16, shape)]
    body = h.make_graph(nodes, "b", ins, [info("go", T.BOOL, []), info("so", T.FLOAT16, shape)])
    node = N("Loop", ["n", "c", "q"], ["y"], body=body, name="loop")
    return graph(
        [node],
        {"q": ("fp16", shape)},
        {"y": ("fp16", shape)},
        {"n": np.int64(3), "c": np.array(True)},
    )


def one(op, ins, out, weights=None, domain="", opset=24, outs=("y",), **a):
    """One node; its weights follow its inputs."""
    names = [*ins, *(weights or {})]
    return graph(
        [N(op, names, list(outs), name="n", domain=domain, **a)], ins, {"y": out}, weights, opset
    )


def layernorm(outs):
    known = {"y": ("fp16", ["b", "s", 64]), "m": ("fp32", ["b", "s", 1])}
    node = N("LayerNormalization", ["x", "w", "w"], outs, axis=-1, name="ln")
    read = {n: known[n] for n in outs if n in known}
    return graph([node], {"x": ("fp16", ["b", "s", 64])}, read, {"w": np.ones(64, f16)})


def rotary(batch, x=("fp16", ["b", 2, "s", 64]), **a):
    cos = {n: ("fp16", [batch, "s", 32]) for n in ("c", "z")}
    return one("RotaryEmbedding", {"x": x, **cos}, x, **a)


def rotary_3d(**a):
    x = ("fp16", ["b", "s", 128])
    weights = {"c": np.ones((32, 32), f16), "z": np.ones((32, 32), f16)}
    node = N("RotaryEmbedding", ["x", "c", "z", "p"], ["y"], name="n", **a)
    return graph([node], {"x": x, "p": ("i64", ["b", "s"])}, {"y": x}, weights)


def scatter(rank=4, t="fp16", **a):
    shape = ["b", *[2] * (rank - 3), 32, 64]
    update = [*shape[:-2], "s", 64]
    ins = {"p": (t, shape), "u": (t, update), "i": ("i64", ["b"])}
    return one("TensorScatter", ins, (t, shape), axis=rank - 2, **a)


def scatter_computed():
    """The cache passes a node before it is written into."""
    shape, update = ["b", 2, 32, 64], ["b", 2, "s", 64]
    nodes = [N("Neg", ["p"], ["c"]), N("TensorScatter", ["c", "u", "i"], ["y"], axis=2, name="n")]
    ins = {"p": ("fp16", shape), "u": ("fp16", update), "i": ("i64", ["b"])}
    return graph(nodes, ins, {"y": ("fp16", shape)})


NARROW = {"fp8": T.FLOAT8E4M3FN, "i8": T.INT8, "u8": T.UINT8, "e5m2": T.FLOAT8E5M2, "i16": T.INT16}
WIDE = {"fp16": f16, "fp32": np.float32, "bf16": bf16}
K, COLUMNS = 128, 64


def quantised(
    q="fp8", t="fp16", scale=None, w_scale=None, zero=None, w_zero=None, dynamic=False, **axis
):
    """x -> Q -> DQ -> MatMul <- DQ <- Q <- w; axis: of the weight's scales."""
    wide = WIDE[t]
    ins = {"x": (t, ["b", K])}
    weights = {"w": (np.random.default_rng(0).standard_normal((K, COLUMNS)) * 0.1).astype(wide)}
    if dynamic:
        ins["sx"] = (t, [])
    else:
        weights["sx"] = wide(0.05) if scale is None else scale
    weights["sw"] = wide(0.05) if w_scale is None else w_scale
    nodes = []
    for name, point, where in (("x", zero, {}), ("w", w_zero, axis)):
        points = []
        if point is not None:
            weights[f"z{name}"], points = point, [f"z{name}"]
        told = where | ({} if points else {"output_dtype": NARROW[q]})
        nodes.append(
            N("QuantizeLinear", [name, f"s{name}", *points], [f"{name}q"], name=f"{name}q", **told)
        )
        nodes.append(
            N(
                "DequantizeLinear",
                [f"{name}q", f"s{name}", *points],
                [f"{name}d"],
                name=f"{name}dq",
                **where,
            )
        )
    nodes.append(N("MatMul", ["xd", "wd"], ["y"], name="mm"))
    return graph(nodes, ins, {"y": (t, ["b", COLUMNS])}, weights)


def blocks(size, dtype=T.INT4):
    """A weight in blocks of 32 along K, by its scales; `size`: what block_size says."""
    weight = h.make_tensor("w", dtype, (K, COLUMNS), np.ones(K * COLUMNS, np.int32))
    scales = np.full((K // 32, COLUMNS), 0.05, f16)
    nodes = [
        N("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=size, name="dq"),
        N("MatMul", ["x", "d"], ["y"], name="mm"),
    ]
    return graph(
        nodes,
        {"x": ("fp16", ["b", K])},
        {"y": ("fp16", ["b", COLUMNS])},
        {"w": weight, "s": scales},
    )


def nvfp4():
    weight = h.make_tensor("w", T.FLOAT4E2M1, (K, COLUMNS), np.ones(K * COLUMNS, np.float32))
    nodes = [
        N("DequantizeLinear", ["ws", "g"], ["s"], name="dq_scale"),
        N("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=16, name="dq"),
        N("MatMul", ["x", "d"], ["y"], name="mm"),
    ]
    held = {"ws": np.ones((K // 16, COLUMNS)).astype(e4m3), "w": weight, "g": f16(0.05)}
    return graph(nodes, {"x": ("fp16", ["b", K])}, {"y": ("fp16", ["b", COLUMNS])}, held)


def linear(t):
    edge = (t, ["b", 64])
    return one(
        "MatMul",
        {"x": edge},
        edge,
        {"w": np.eye(64).astype({"fp64": np.float64, "i32": np.int32, **WIDE}[t])},
    )


def cast(to):
    nodes = [N("Cast", ["x"], ["c"], to=NAMES[to], name="n"), N("Cast", ["c"], ["y"], to=T.FLOAT)]
    return graph(nodes, {"x": ("fp32", ["b", 8])}, {"y": ("fp32", ["b", 8])})


def identity(t, dims=("b", 8)):
    return one("Identity", {"x": (t, list(dims))}, (t, list(dims)))


def top_k(k):
    ins, outs = {"x": ("fp32", ["b", 5000])}, {"v": ("fp32", ["b", k]), "i": ("i64", ["b", k])}
    return graph([N("TopK", ["x", "k"], ["v", "i"], name="n")], ins, outs, {"k": np.array([k])})


def scatter_nd(reduction):
    ins = {"x": ("fp32", ["b", 8]), "i": ("i64", ["n", 2]), "u": ("fp32", ["n"])}
    return one("ScatterND", ins, ("fp32", ["b", 8]), reduction=reduction)


def dropout(training):
    held = {"r": np.float32(0.5), "t": np.array(training)}
    return one("Dropout", {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8]), held)


def branches(other):
    info = h.make_tensor_value_info
    then = h.make_graph([N("Add", ["x", "x"], ["ya"])], "t", [], [info("ya", T.FLOAT, ["b", 8])])
    node, dims = other
    otherwise = h.make_graph([node], "e", [], [info("yb", T.FLOAT, dims)])
    taken = N("If", ["c"], ["y"], then_branch=then, else_branch=otherwise, name="n")
    return graph([taken], {"c": ("bool", []), "x": ("fp32", ["b", 8])}, {"y": ("fp32", None)})


def range_of(source):
    """Range up to an input's value, or up to an input's size."""
    nodes = [
        N("Range", ["zero", "n", "one"], ["r"], name="range"),
        N("Cast", ["r"], ["y"], to=T.FLOAT),
    ]
    ins = {"n": ("i64", [])}
    if source == "size":
        ins = {"x": ("fp32", ["b", 8])}
        nodes = [N("Shape", ["x"], ["s"], start=0, end=1), N("Squeeze", ["s"], ["n"]), *nodes]
    return graph(nodes, ins, {"y": ("fp32", [None])}, {"zero": np.int64(0), "one": np.int64(1)})


def called(times, inner):
    body = {
        "quantize": [
            N("QuantizeLinear", ["a", "s"], ["q"], name="q", output_dtype=T.FLOAT8E4M3FN),
            N("DequantizeLinear", ["q", "s"], ["b"], name="dq"),
        ],
        "mul": [N("Mul", ["a", "s"], ["b"], name="mul")],
    }[inner]
    function = h.make_function("other", "F", ["a", "s"], ["b"], body, [h.make_opsetid("", 24)])
    values = ["x", *(f"v{i}" for i in range(times - 1)), "y"]
    nodes = [
        N("F", [a, "s"], [b], domain="other", name=f"call{b}")
        for a, b in itertools.pairwise(values)
    ]
    edge = ("fp16", ["b", 64])
    return graph(nodes, {"x": edge}, {"y": edge}, {"s": f16(0.1)}, functions=[function])


def stored(reader):
    weight = numpy_helper.from_array(np.ones(64).astype(e4m3), "w")
    nodes = [N("Cast", ["w"], ["d"], to=T.FLOAT16, name="read")]
    if reader == "DequantizeLinear":
        nodes = [N("DequantizeLinear", ["w", "s"], ["d"], name="read")]
    nodes.append(N("Add", ["x", "d"], ["y"]))
    edge = ("fp16", ["b", 64])
    return graph(nodes, {"x": edge}, {"y": edge}, {"w": weight, "s": f16(1)})


def masked(value, how="cast"):
    """Scores plus a constant mask, then Softmax."""
    mask = np.triu(np.full((8, 8), 1.0), 1) > 0
    nodes = [N("Add", ["x", "m"], ["z"], name="add"), N("Softmax", ["z"], ["y"], axis=-1)]
    if how == "cast":
        held = {"f": np.where(mask, value, 0).astype(np.float32)}
        nodes.insert(0, N("Cast", ["f"], ["m"], to=T.FLOAT16, name="narrow"))
    else:
        held = {"m": np.where(mask, value, 0).astype(f16)}
    edge = ("fp16", ["b", 8, 8])
    return graph(nodes, {"x": edge}, {"y": edge}, held)


def spelled_norm(t):
    wide = WIDE[t]
    nodes = [
        N("Mul", ["x", "x"], ["p"], name="square"),
        N("ReduceMean", ["p", "ax"], ["m"], name="mean"),
        N("Add", ["m", "e"], ["a"], name="add"),
        N("Sqrt", ["a"], ["r"], name="sqrt"),
        N("Div", ["x", "r"], ["d"], name="div"),
        N("Mul", ["d", "w"], ["y"], name="mul"),
    ]
    edge = (t, ["b", "s", 64])
    held = {"ax": np.array([-1]), "e": wide(1e-5), "w": np.ones(64, wide)}
    return graph(nodes, {"x": edge}, {"y": edge}, held)


def angles(t):
    nodes = [N("Mul", ["p", "f"], ["a"], name="angle"), N("Cos", ["a"], ["y"], name="cos")]
    edge = (t, ["s", 32])
    return graph(
        nodes, {"p": (t, ["s", 1])}, {"y": edge}, {"f": np.linspace(0, 1, 32).astype(WIDE[t])}
    )


def island(weight="fp32", back=True):
    nodes = [N("Cast", ["x"], ["c"], to=T.FLOAT), N("MatMul", ["c", "w"], ["m"], name="mm")]
    out = ("fp32", ["b", 64])
    if back:
        nodes.append(N("Cast", ["m"], ["y"], to=T.FLOAT16))
        out = ("fp16", ["b", 64])
    else:
        nodes[-1].output[0] = "y"
    held = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    if weight == "fp16":
        held = {"v": held["w"].astype(f16)}
        nodes.insert(0, N("Cast", ["v"], ["w"], to=T.FLOAT))
    return graph(nodes, {"x": ("fp16", ["b", 64])}, {"y": out}, held)


def scales(n=COLUMNS, **changed):
    made = np.full(n, 0.05, f16)
    for index, value in changed.items():
        made[int(index[1:])] = value
    return made


plain = attention(is_causal=1)
X8 = {"x": ("fp32", ["b", 8])}
fp8 = quantised()

CASES = (
    Case("operator.unknown", one("Det", {"x": ("fp32", ["b", 4, 4])}, ("fp32", ["b"])), (identity("fp32"),)),
    Case("operator.unknown", one("FastGelu", {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8]), domain="com.microsoft"),
         (one("Gelu", {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8]), domain="com.microsoft"), called(1, "mul"))),
    Case("operator.plugin", one("NonZero", X8, ("i64", [2, None])), (identity("fp32"),)),
    Case("operator.plugin", one("LinearAttention", {n: ("fp16", ["b", 4, 64]) for n in "qkv"}, ("fp16", ["b", 4, 64]),
                                opset=27, q_num_heads=2, kv_num_heads=2), (plain,)),
    Case("operator.body", one("SwiGLU", {n: ("fp16", ["b", 8]) for n in "xz"}, ("fp16", ["b", 8]), domain="blockforge"),
         (one("Swish", {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8])),)),
    Case("topk.k", top_k(3841), (top_k(3840),)),
    Case("scatter.reduction", scatter_nd("add"), (scatter_nd("none"),)),
    Case("dropout.training", dropout(True), (dropout(False),)),
    Case("opset.old", one("Add", dict.fromkeys("xz", X8["x"]), X8["x"], opset=6),
         (one("Add", dict.fromkeys("xz", X8["x"]), X8["x"], opset=7),)),
    Case("rank.high", identity("fp32", ["b", *[1] * 8]), (identity("fp32", ["b", *[1] * 7]),)),
    Case("if.branches", branches((N("ReduceSum", ["x"], ["yb"], keepdims=0), [])),
         (branches((N("Mul", ["x", "x"], ["yb"]), ["b", 8])),)),
    Case("if.branches", branches((N("Concat", ["x", "x"], ["yb"], axis=1), ["b", 16])), ()),
    Case("input.decides-size", range_of("value"), (range_of("size"),)),
    Case("matmul.integer", linear("i32"), (linear("fp32"),)),
    Case("function.quantize", called(2, "quantize"), (called(1, "quantize"), called(2, "mul"))),
    Case("architecture.bf16", linear("bf16"), (linear("bf16"),), "SM75", "SM80"),
    Case("architecture.bf16", cast("bf16"), (cast("bf16"),), "SM75", "SM80"),
    Case("architecture.fp8_e4m3", fp8, (fp8,), "SM80", "SM89"),
    Case("architecture.fp8_e4m3", stored("DequantizeLinear"), (stored("DequantizeLinear"),), "SM86", "SM89"),
    Case("architecture.float4e2m1", nvfp4(), (nvfp4(),), "SM89", "SM120"),
    Case("architecture.int4", blocks(32), (blocks(32),), "SM75", "SM80"),
    Case("type.unknown", identity("i16"), (identity("i32"), identity("bool"))),
    Case("cast.type", cast("i16"), (cast("i32"), cast("i8"))),
    Case("cast.type", cast("fp8"), ()),
    Case("weight.stored-type", stored("Cast"), (stored("DequantizeLinear"),)),
    Case("type.fp64", linear("fp64"), (linear("fp32"),)),
    Case("attention.fp32", attention("fp32", is_causal=1), (plain, attention("bf16", is_causal=1),
         attention("fp32", is_causal=1, TRT_decomposable=1))),
    *(Case("attention.head-size", attention(d=d, is_causal=1), ()) for d in (1, 8, 257, 512)),
    Case("attention.head-size", attention(d=264), (attention(d=9), attention(d=17), attention(d=256))),
    *(Case("attention.head-size", attention(d=8), (attention(d=9),), arch, arch) for arch in ("SM75", "SM80", "SM120")),
    Case("attention.value-size", attention(dv=32), (plain,)),
    Case("attention.softcap", attention(softcap=30.0), (attention(softcap=0.0),)),
    Case("attention.mask-and-causal", attention(more=MASK, ins="q k v m", is_causal=1),
         (attention(more=MASK, ins="q k v m"), attention(more=MASK, ins="q k v m", is_causal=0))),
    Case("attention.outputs", attention(outs="y u1 u2"), (plain,)),
    Case("attention.outputs", attention(keys="t", more=PAST, ins="q k v _ a c", outs="y pk pv"), ()),
    Case("attention.scores", attention(outs="y _ _ qk"), (plain,)),
    Case("attention.past", attention(keys="t", more=PAST, ins="q k v _ a c"), (attention(keys="t"),)),
    Case("attention.subgraph", attention_inside("If"), (plain,)),
    Case("attention.subgraph", attention_inside("Loop"), ()),
    Case("attention.softmax-precision", attention(softmax_precision=1), (plain,)),
    Case("attention.softmax-precision", attention(softmax_precision=10), ()),
    Case("attention.narrow-softmax", attention("bf16", softmax_precision=10), (attention("bf16"),)),
    Case("attention.mask-type", attention(more={"m": ("fp32", ["b", 1, "s", "s"])}, ins="q k v m"),
         (attention(more=MASK, ins="q k v m"), attention(more={"m": ("bool", ["b", 1, "s", "s"])}, ins="q k v m"))),
    Case("attention.groups", attention(heads=3, kv=2), (attention(heads=9, kv=3),)),
    Case("attention.heads", attention_3d(), (attention_3d(q_num_heads=2, kv_num_heads=2),)),
    Case("attention.nonpad", attention(more={"n": ("i64", ["b"])}, ins="q k v _ _ _ n"), (plain,)),
    Case("attention.window", attention(left_window_size=4, opset=25), (attention(left_window_size=-1, opset=25),)),
    Case("layernorm.outputs", layernorm(["y", "u", "v"]), (layernorm(["y"]),)),
    Case("layernorm.statistics", layernorm(["y", "m"]), (layernorm(["y"]),)),
    Case("rotary.batch", rotary(1), (rotary("b"),)),
    Case("rotary.heads", rotary_3d(), (rotary_3d(num_heads=2),)),
    Case("tensorscatter.mode", scatter(mode="circular"), (scatter(), scatter(mode="linear"))),
    Case("tensorscatter.rank", scatter(rank=3), (scatter(rank=4),)),
    Case("tensorscatter.type", scatter(t="fp8"), (scatter(), scatter(t="bf16"), scatter(t="fp32"))),
    Case("tensorscatter.input", scatter_computed(), (scatter(),)),
    *(Case("scale.sign", quantised(scale=f16(s)), ()) for s in (0, -0.05, np.nan)),
    Case("scale.sign", quantised(w_scale=scales(_3=0), axis=1), (quantised(w_scale=scales(), axis=1),)),
    Case("scale.sign", quantised("i8", scale=f16(0)), (quantised("i8"),)),
    Case("scale.infinite", quantised(scale=f16(np.inf)), (fp8,)),
    Case("scale.shape", quantised(w_scale=scales(COLUMNS - 1), axis=1),
         (quantised(w_scale=scales(), axis=-1), quantised(w_scale=scales(1)), quantised(w_scale=scales(K), axis=0))),
    Case("scale.shape", quantised(w_scale=scales(), axis=5), ()),
    Case("scale.shape", quantised(w_scale=scales().reshape(1, -1), axis=1), ()),
    Case("scale.block", blocks(8), (blocks(32),)),
    Case("scale.type", quantised(t="fp32", scale=f16(0.05), w_scale=f16(0.05)),
         (quantised(scale=np.float32(0.05), w_scale=np.float32(0.05)), quantised(t="bf16"))),
    Case("scale.dynamic", quantised(dynamic=True), (fp8,)),
    Case("zero-point.integer", quantised("i8", zero=np.int8(3)), (quantised("i8", zero=np.int8(0), w_zero=np.int8(0)),)),
    Case("zero-point.integer", quantised("i8", w_zero=np.int8(3)), ()),
    Case("zero-point.float", quantised(zero=e4m3(1)), (quantised(zero=e4m3(0), w_zero=e4m3(0)),)),
    *(Case("quantize.type", quantised(q), ()) for q in ("u8", "i16")),
    Case("quantize.type", quantised("e5m2"), (fp8, quantised("i8"))),
    Case("mask.narrowed", masked(np.finfo(np.float32).min), (masked(-32752.0), masked(-65504.0), masked(-np.inf))),
    Case("mask.infinite", masked(-np.inf, "own"), (masked(-32752.0, "own"),)),
    Case("norm.half-sums", spelled_norm("fp16"), (spelled_norm("fp32"), spelled_norm("bf16"))),
    Case("rotary.half-angles", angles("fp16"), (angles("fp32"),)),
    Case("attention.causal-offset", attention(keys="t", is_causal=1), (plain, attention(keys="t"))),
    Case("product.narrowed", island(), (island("fp16"), island(back=False))),
)  # fmt: skip
