"""Small decoders written by hand, in the spellings that real exports have, with outliers where a test wants them.

ids [B, S] -> (scaled) rows of a table -> layers (norm, attention, add; norm, feed-forward, add) -> norm -> head
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

H, V, INNER, HEADS = 16, 24, 32, 2


@dataclass(frozen=True)
class Shape:
    """Which decoder to write."""

    norm: str = "rms"  # rms, spelled_rms, layer, spelled_layer
    layers: int = 2
    tied: bool = True
    bias: bool = False
    post_norm: bool = False
    gate: str = "swish"  # swish (SwiGLU spelled), gelu (no gate), none
    embed_scale: float = 1.0
    softcap: float = 0.0
    attention: str = "operator"  # operator, spelled
    epsilon: float = 1e-5
    seed: int = 0
    plant: dict[str, float] = field(
        default_factory=dict, hash=False
    )  # weight -> factor of one column


class Writer:
    """Collects nodes and weights."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.nodes, self.weights = shape, [], []
        self.random = np.random.default_rng(shape.seed)
        self.count = 0

    def op(self, op, *inputs, name=None, **attributes):
        self.count += 1
        out = name or f"{op.lower()}_{self.count}"
        node = helper.make_node(op, list(inputs), [out], name=f"{out}/{op}", **attributes)
        self.nodes.append(node)
        return out

    def split(self, x, *sizes):
        self.count += 1
        parts = [f"split_{self.count}_{i}" for i in range(len(sizes))]
        inputs = [x, self.number(list(sizes), np.int64)]
        self.nodes.append(helper.make_node("Split", inputs, parts, name=f"{x}/Split", axis=-1))
        return parts

    def number(self, value, dtype=np.float32):
        name = f"number_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, name, *sizes, ones=False):
        values = self.random.standard_normal(sizes) * (sizes[0] ** -0.5 if len(sizes) > 1 else 0.1)
        values = values + 1 if ones else values
        for planted, factor in self.shape.plant.items():
            if name == planted:
                values[..., 3] = np.where(values[..., 3] < 0, -1, 1) * factor
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def norm(self, x, name):
        shape, weight = self.shape, self.weight(f"{name}.weight", H, ones=True)
        layer = shape.norm.endswith("layer")
        bias = [self.weight(f"{name}.bias", H)] if layer else []
        if shape.norm == "rms":
            return self.op("RMSNormalization", x, weight, name=name, epsilon=shape.epsilon)
        if shape.norm == "layer":
            return self.op("LayerNormalization", x, weight, *bias, name=name, epsilon=shape.epsilon)
        last = self.number([-1], np.int64)
        if layer:
            x = self.op("Sub", x, self.op("ReduceMean", x, last))
        square = self.op("Pow", x, self.number(2.0))
        mean = self.op("ReduceMean", square, last)
        root = self.op("Sqrt", self.op("Add", mean, self.number(shape.epsilon)))
        unit = self.op("Div", x, root) if layer else self.op("Mul", x, self.op("Reciprocal", root))
        scaled = self.op("Mul", unit, weight, name=None if layer else name)
        return self.op("Add", scaled, bias[0], name=name) if layer else scaled

    def linear(self, x, name, size_in, size_out):
        y = self.op("MatMul", x, self.weight(f"{name}.weight", size_in, size_out))
        return self.op("Add", y, self.weight(f"{name}.bias", size_out)) if self.shape.bias else y

    def attention(self, x, name):
        q, k, v = (self.linear(x, f"{name}.{p}_proj", H, H) for p in "qkv")
        if self.shape.attention == "operator":
            y = self.op("Attention", q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=1)
        else:
            scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
            scores = self.op("Mul", scores, self.number(H**-0.5))
            masked = self.op("Add", scores, "mask")
            y = self.op("MatMul", self.op("Softmax", masked, axis=-1), v)
        return self.linear(y, f"{name}.o_proj", H, H)

    def feed_forward(self, x, name):
        up = self.linear(x, f"{name}.up_proj", H, INNER)
        if self.shape.gate == "swish":
            gate = self.linear(x, f"{name}.gate_proj", H, INNER)
            up = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        elif self.shape.gate == "gelu":
            up = self.op("Gelu", up)
        return self.linear(up, f"{name}.down_proj", INNER, H)


def decoder(shape: Shape, sequence: int = 6) -> onnx.ModelProto:
    """The decoder as an FP32 model of opset 23."""
    w = Writer(shape)
    table = w.weight("embed.weight", V, H)
    x = w.op("Gather", table, "ids", axis=0, name="embed")
    if shape.embed_scale != 1:
        x = w.op("Mul", x, w.number(shape.embed_scale))
    if shape.attention == "spelled":
        hidden = np.triu(np.full((sequence, sequence), np.finfo(np.float32).min), 1)
        w.weights.append(numpy_helper.from_array(hidden.astype(np.float32), "mask"))
    for i in range(shape.layers):
        for part, compute in (("attn", w.attention), ("mlp", w.feed_forward)):
            y = compute(w.norm(x, f"layers.{i}.{part}_norm"), f"layers.{i}.{part}")
            if shape.post_norm:
                y = w.norm(y, f"layers.{i}.{part}_post")
            x = w.op("Add", x, y, name=f"layers.{i}.{part}.sum")
    x = w.norm(x, "norm")
    if shape.tied:
        head = w.op("Transpose", table, perm=[1, 0])
    else:
        head = w.weight("head.weight", H, V)
    last = {} if shape.softcap else {"name": "logits"}
    x = w.op("MatMul", x, head, **last)
    if shape.softcap:
        cap = w.number(shape.softcap)
        w.op("Mul", w.op("Tanh", w.op("Div", x, cap)), cap, name="logits")
    return model_of(w, [("ids", TensorProto.INT64, ["batch", sequence])], [("logits", V)], sequence)


def model_of(w, inputs, outputs, sequence):
    """Close the graph and check it."""
    graph = helper.make_graph(
        w.nodes,
        "decoder",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", sequence, size])
            for n, size in outputs
        ],
        w.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model
