"""For each row of engines/preflight/forms.py: a graph that has the form, and its near misses that do not."""

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from preflight_cases import Case, N, attention, f16, graph, one, stored

IMAGE = ("fp32", ["b", 4, 8, 8])
X8 = {"x": ("fp32", ["b", 8])}


def image(op, t="fp32", shape=("b", 4, 8, 8), outs=("y",), ins=(), y=None, opset=24, **a):
    """One operator on an image; its output declares no shape."""
    names = ["x", *(f"w{i}" for i in range(len(ins)))]
    edges = dict.fromkeys(outs, (y or t, None))
    weights = {f"w{i}": v for i, v in enumerate(ins) if v is not None}
    names = [n if n == "x" or n in weights else "" for n in names]
    node = N(op, names, list(outs), name="n", **a)
    return graph([node], {"x": (t, list(shape))}, edges, weights, opset)


def resize(**a):
    return image("Resize", ins=(None, None, np.array([1, 4, 16, 16])), shape=(1, 4, 8, 8), **a)


def pool(op, **a):
    return image(op, kernel_shape=[2, 2], **a)


def normalised(training):
    w = [np.ones(4, np.float32)] * 4
    return image("BatchNormalization", ins=w, training_mode=training)


def mod(t, fmod=0):
    x = (t, ["b", 8])
    return one("Mod", {"x": x, "z": x}, x, fmod=fmod)


def transposed(channels):
    return image(
        "ConvTranspose", shape=("b", channels, 8, 8), ins=(np.ones((4, 2, 3, 3), np.float32),)
    )


def vector(batch):
    a, b = ("fp32", [8]), ("fp32", [batch, 8, 4])
    return one("MatMul", {"x": a, "z": b}, ("fp32", [batch, 4]))


def suppressed():
    ins = {"x": ("fp32", [1, 6, 4]), "z": ("fp32", [1, 1, 6])}
    node = N("NonMaxSuppression", ["x", "z", "k"], ["y"], name="n")
    return graph([node], ins, {"y": ("i64", None)}, {"k": np.int64(3)})


def from_fp8(op):
    more = {"s": f16(0.1)} if op == "DequantizeLinear" else {}
    told = {"to": T.FLOAT16} if op == "Cast" else {}
    names = ["x", *more]
    return graph([N(op, names, ["y"], name="n", **told)], {"x": ("fp8", [2, 64])}, {"y": ("fp16", [2, 64])}, more)  # fmt: skip


def cast_like(t):
    return one("CastLike", {"x": ("fp16", [2, 64]), "z": (t, [2, 64])}, (t, [2, 64]))


def loop(condition=True, trips="weight", stacked=False):
    """x -> Relu, three times or as often as an input says; stacked: every iteration's value is an output too."""
    shape, info = ["b", 8], h.make_tensor_value_info
    nodes = [N("Identity", ["on"], ["go"]), N("Relu", ["s"], ["so"])]
    outs = [info("go", T.BOOL, []), info("so", T.FLOAT, shape)]
    if stacked:
        nodes.append(N("Identity", ["s"], ["sc"]))
        outs.append(info("sc", T.FLOAT, shape))
    ins = [info("i", T.INT64, []), info("on", T.BOOL, []), info("s", T.FLOAT, shape)]
    body = h.make_graph(nodes, "body", ins, outs)
    weights = ({"k": np.array(True)} if condition else {}) | ({"n": np.int64(3)} if trips == "weight" else {})  # fmt: skip
    edges = X8 | ({} if trips == "weight" else {"n": ("i64", [])})
    made = {"y": X8["x"]} | ({"z": ("fp32", [None, "b", 8])} if stacked else {})
    node = N("Loop", ["n", "k" if condition else "", "x"], list(made), body=body, name="loop")
    return graph([node], edges, made, weights)


def of_sequence(tensor):
    kind = h.make_tensor_type_proto(T.FLOAT, [2, 8])
    value = h.make_value_info("x", kind if tensor else h.make_optional_type_proto(kind))
    model = h.make_model(
        h.make_graph([N("Identity", ["x"], ["y"])], "g", [value],
                     [h.make_value_info("y", value.type)]),
        opset_imports=[h.make_opsetid("", 24)], ir_version=11,
    )  # fmt: skip
    return model.SerializeToString()


def reduced(axes):
    held = {"a": np.array([1])} if axes == "weight" else {}
    edges = X8 | ({} if held else {"a": ("i64", [1])})
    return graph([N("ReduceMax", ["x", "a"], ["y"], name="n")], edges, {"y": ("fp32", None)}, held)


def own_domain(domain, op="Relu"):
    return one(op, {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8]), domain=domain)


def masked_keys(columns):
    mask = {"m": ("fp16", ["b", 1, 4, columns])}
    return attention(keys=8, more=mask | {"q": ("fp16", ["b", 4, 4, 64])}, ins="q k v m")


FORM_CASES = (
    *(Case("operator.attribute", pool(op, dilations=[2, 2]), (pool(op, dilations=[1, 1]), pool(op)))
      for op in ("AveragePool", "LpPool", "MaxPool")),
    Case("operator.attribute", pool("LpPool", p=3), (pool("LpPool", p=1),)),
    Case("operator.attribute", normalised(1), (normalised(0),)),
    Case("operator.attribute", resize(mode="linear", antialias=1), (resize(mode="linear", antialias=0), resize())),
    Case("operator.attribute", image("Resize", shape=(1, 4, 8, 8), ins=(None, None, None, np.array([16, 16])), axes=[2, 3],
                                     keep_aspect_ratio_policy="not_larger"), ()),
    Case("operator.attribute", image("Resize", shape=(1, 4, 8, 8), mode="linear",
                                     ins=(np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), None, np.array([1, 4, 16, 16])),
                                     coordinate_transformation_mode="tf_crop_and_resize"), ()),
    Case("operator.type", image("Mish", "bf16"), (image("Mish", "fp16"), image("Softplus", "bf16"))),
    Case("mod.type", mod("fp32"), (mod("fp32", 1), mod("i32"))),
    Case("mod.type", mod("i8"), ()),
    Case("shape.dynamic", image("EyeLike", shape=("b", 8)), (image("EyeLike", shape=(8, 8)),)),
    Case("shape.dynamic", transposed("c"), (transposed(4),)),
    Case("shape.rank", image("GlobalLpPool", shape=("b", 8)), (image("GlobalLpPool", shape=("b", 8, 8)),)),
    *(Case("shape.rank", image(op, shape=("b", 8)), ()) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    Case("matmul.vector", vector(2), (vector(1),)),
    Case("operator.outputs", pool("MaxPool", outs=("y", "z")), (pool("MaxPool"),)),
    Case("operator.kernel", suppressed(), (pool("MaxPool"),)),
    Case("cast.from", from_fp8("Cast"), (from_fp8("DequantizeLinear"), stored("DequantizeLinear"))),
    Case("cast.like", cast_like("fp8"), (cast_like("fp32"),)),
    Case("loop.condition", loop(condition=False), (loop(),)),
    Case("input.kind", of_sequence(False), (of_sequence(True),)),
    Case("input.decides-size", reduced("input"), (reduced("weight"),)),
    Case("input.decides-size", loop(trips="input", stacked=True), (loop(trips="input"), loop(stacked=True))),
    Case("operator.foreign", own_domain("other"), (own_domain(""), own_domain("com.microsoft", "Gelu"))),
    Case("operator.unknown", own_domain("", "Frobnicate"), (own_domain(""),)),
    Case("operator.unknown", own_domain("other", "Frobnicate"), ()),
    Case("attention.mask-length", masked_keys(6), (masked_keys(8),)),
    Case("attention.dynamic-size", attention(d="d", dv=64, more={"k": ("fp16", ["b", 2, "s", 64])}), (attention(),)),
)  # fmt: skip
