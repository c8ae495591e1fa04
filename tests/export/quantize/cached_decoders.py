"""Tiny decoders with a key-value cache as graphs, and the same in float64 numpy with or without an FP8 cache.

    h = E[id] + P[position];  q, k, v = h Wq, h Wk, h Wv;  h += attend(q, cache of k, cache of v) Wo;  logits = h Wh

One token a step; `layers` of these. E4M3 comes from ml_dtypes, nothing from Blockforge.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB, HEADS, KV_HEADS, SIZE, LENGTH = 61, 4, 2, 16, 48
HIDDEN = HEADS * SIZE
OPSET = 24
NODE = helper.make_node


@dataclass(frozen=True)
class Weights:
    """Seeded float32 weights."""

    layers: int = 2
    seed: int = 0

    def arrays(self):
        rng = np.random.default_rng(self.seed)
        made = {
            "embed": rng.standard_normal((VOCAB, HIDDEN)),
            "places": rng.standard_normal((LENGTH, HIDDEN)) * 0.5,
            "head": rng.standard_normal((HIDDEN, VOCAB)) * HIDDEN**-0.5,
        }
        for n in range(self.layers):
            for name, out in (("q", HIDDEN), ("k", KV_HEADS * SIZE), ("v", KV_HEADS * SIZE), ("o", HIDDEN)):  # fmt: skip
                made[f"layers.{n}.{name}"] = rng.standard_normal((HIDDEN, out)) * HIDDEN**-0.5
        return {k: a.astype(np.float32) for k, a in made.items()}


def e4m3(x, scale):
    """x rounded to E4M3 over scale: nearest even, saturated at 448."""
    codes = np.clip(np.asarray(x, np.float64) / scale, -448, 448).astype(np.float32)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale


class Oracle:
    """Decodes in float64. scales: name of a cache -> its scale; None leaves the cache as it is."""

    def __init__(self, weights, scales=None):
        self.w = {k: a.astype(np.float64) for k, a in weights.arrays().items()}
        self.layers, self.scales = weights.layers, scales
        self.cache = {f"{n}.{x}": [] for n in range(self.layers) for x in ("key", "value")}
        self.seen = []  # per step and layer: q, k of all positions, v of all positions, context

    def step(self, token, position):
        """Logits [VOCAB] after one more token."""
        h = self.w["embed"][token] + self.w["places"][position]
        for n in range(self.layers):
            q, k, v = (h @ self.w[f"layers.{n}.{x}"] for x in "qkv")
            for name, new in ((f"{n}.key", k), (f"{n}.value", v)):
                self.cache[name].append(
                    new if self.scales is None else e4m3(new, self.scales[name])
                )
            keys, values = (
                np.stack(self.cache[f"{n}.{x}"]).reshape(-1, KV_HEADS, SIZE)
                for x in ("key", "value")
            )
            keys, values = (np.repeat(a, HEADS // KV_HEADS, 1) for a in (keys, values))
            scores = np.einsum("nd,tnd->nt", q.reshape(HEADS, SIZE), keys) * SIZE**-0.5
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            context = np.einsum("nt,tnd->nd", p, values)
            self.seen.append((q.reshape(HEADS, SIZE), keys, values, context))
            h = h + context.reshape(-1) @ self.w[f"layers.{n}.o"]
        return h @ self.w["head"]


def past_name(layer, part):
    return f"past_key_values.{layer}.{part}"


def present_name(layer, part):
    return f"present.{layer}.{part}"


def decoder(form, weights=Weights()):
    """The graph of one step in FP32. form: scatter, concat (spelled-out attention), or attention (opset 24's own cache).

    Inputs input_ids [b, 1], position [1] (int64), for scatter write [b] and lengths [b]; caches
    [b, KV_HEADS, past or LENGTH, SIZE].
    """
    arrays = weights.arrays()
    constants = {
        "heads": np.array([0, 1, HEADS, SIZE]), "kv_heads": np.array([0, 1, KV_HEADS, SIZE]),
        "flat": np.array([0, 1, HIDDEN]), "third": np.array([2]),
        "grouped": np.array([0, KV_HEADS, HEADS // KV_HEADS, -1, SIZE]),
        "group": np.array([1, 1, HEADS // KV_HEADS, 1, 1]), "all": np.array([0, HEADS, -1, SIZE]),
        "root": np.float32(SIZE**-0.5),
    }  # fmt: skip
    nodes = [
        NODE("Gather", ["embed", "input_ids"], ["embedded"], name="embed/Gather"),
        NODE("Gather", ["places", "position"], ["placed"], name="places/Gather"),
        NODE("Add", ["embedded", "placed"], ["h.0"], name="Add"),
    ]
    for n in range(weights.layers):
        nodes += _layer(form, n)
    nodes.append(NODE("MatMul", [f"h.{weights.layers}", "head"], ["logits"], name="lm_head/MatMul"))  # fmt: skip
    length = LENGTH if form == "scatter" else "past"
    whole = LENGTH if form == "scatter" else "total"
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", TensorProto.INT64, ["b", 1]), info("position", TensorProto.INT64, [1])]  # fmt: skip
    if form == "scatter":
        inputs += [info(n, TensorProto.INT64, ["b"]) for n in ("write", "lengths")]
    outputs = [info("logits", TensorProto.FLOAT, ["b", 1, VOCAB])]
    for n in range(weights.layers):
        for part in ("key", "value"):
            shape = ["b", KV_HEADS, length, SIZE]
            inputs.append(info(past_name(n, part), TensorProto.FLOAT, shape))
            shape = ["b", KV_HEADS, whole, SIZE]
            outputs.append(info(present_name(n, part), TensorProto.FLOAT, shape))
    used = {name for node in nodes for name in node.input}
    held = {**arrays, **constants}
    tensors = [numpy_helper.from_array(np.ascontiguousarray(a), k) for k, a in held.items() if k in used]  # fmt: skip
    model = helper.make_model(
        helper.make_graph(nodes, form, inputs, outputs, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11,
    )  # fmt: skip
    onnx.checker.check_model(model)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _layer(form, n):
    m, h = f"layers.{n}", f"h.{n}"
    nodes = []
    for x, shape in (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads")):
        nodes += [
            NODE("MatMul", [h, f"{m}.{x}"], [f"{m}/{x}"], name=f"{m}.{x}_proj/MatMul"),
            NODE("Reshape", [f"{m}/{x}", shape], [f"{m}/{x}_split"], name=f"{m}/Reshape_{x}"),
            NODE("Transpose", [f"{m}/{x}_split"], [f"{m}/{x}4"], perm=[0, 2, 1, 3], name=f"{m}/Transpose_{x}"),
        ]  # fmt: skip
    q, k, v, y = (f"{m}/{x}" for x in ("q4", "k4", "v4", "context"))
    pasts = [past_name(n, p) for p in ("key", "value")]
    presents = [present_name(n, p) for p in ("key", "value")]
    if form == "attention":
        nodes.append(
            NODE("Attention", [q, k, v, "", *pasts], [y, *presents], name=f"{m}/Attention")
        )
    elif form == "scatter":
        for new, past, present in zip((k, v), pasts, presents, strict=True):
            nodes.append(NODE("TensorScatter", [past, new, "write"], [present], axis=2, name=f"{present}/TensorScatter"))  # fmt: skip
        nodes.append(NODE("Attention", [q, *presents, "", "", "", "lengths"], [y], name=f"{m}/Attention"))  # fmt: skip
    else:
        nodes += _spelled(m, q, (k, v), pasts, presents, y)
    nodes += [
        NODE("Transpose", [y], [f"{m}/turned"], perm=[0, 2, 1, 3], name=f"{m}/Transpose"),
        NODE("Reshape", [f"{m}/turned", "flat"], [f"{m}/flat"], name=f"{m}/Reshape"),
        NODE("MatMul", [f"{m}/flat", f"{m}.o"], [f"{m}/o"], name=f"{m}.o_proj/MatMul"),
        NODE("Add", [h, f"{m}/o"], [f"h.{n + 1}"], name=f"{m}/Add"),
    ]
    return nodes


def _spelled(m, q, new, pasts, presents, y):
    """Concat, repeated heads, and attention in its parts, as Hugging Face's eager decoders export."""
    nodes = []
    for x, fresh, past, present in zip("kv", new, pasts, presents, strict=True):
        nodes += [
            NODE("Concat", [past, fresh], [present], axis=2, name=f"{present}/Concat"),
            NODE("Unsqueeze", [present, "third"], [f"{m}/{x}5"], name=f"{m}/Unsqueeze_{x}"),
            NODE("Expand", [f"{m}/{x}5", "group"], [f"{m}/{x}_spread"], name=f"{m}/Expand_{x}"),
            NODE("Reshape", [f"{m}/{x}_spread", "all"], [f"{m}/{x}_all"], name=f"{m}/Reshape_all_{x}"),
        ]  # fmt: skip
    return [
        *nodes,
        NODE("Transpose", [f"{m}/k_all"], [f"{m}/kT"], perm=[0, 1, 3, 2], name=f"{m}/Transpose_keys"),
        NODE("MatMul", [q, f"{m}/kT"], [f"{m}/scores"], name=f"{m}/scores/MatMul"),
        NODE("Mul", [f"{m}/scores", "root"], [f"{m}/scaled"], name=f"{m}/scores/Mul"),
        NODE("Softmax", [f"{m}/scaled"], [f"{m}/weights"], axis=-1, name=f"{m}/Softmax"),
        NODE("MatMul", [f"{m}/weights", f"{m}/v_all"], [y], name=f"{m}/context/MatMul"),
    ]  # fmt: skip
