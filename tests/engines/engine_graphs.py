"""Small typed graphs in the form the exporter writes: built by hand, so that engines are tested without export."""

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 24
TYPES = {
    "fp32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "fp16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bf16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
HIDDEN, HEADS, KV_HEADS, INNER, POSITIONS = 64, 4, 2, 128, 32
D = HIDDEN // HEADS


class Chain:
    """A chain of Llama-like blocks: hidden_states [batch, sequence, HIDDEN] -> output, names as the modules'."""

    def __init__(self, dtype="fp16", blocks=4, first=0, seed=0):
        self.onnx, self.numpy = TYPES[dtype]
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.blocks, self.first = [], [], blocks, first

    def node(self, op, inputs, output, module, domain="", **attributes):
        names = {n.name for n in self.nodes}
        name = f"{module}/{op}" if module else op
        if name in names:
            name = f"{name}_1"
        self.nodes.append(
            helper.make_node(op, inputs, [output], name=name, domain=domain, **attributes)
        )
        return output

    def weight(self, name, *shape):
        values = self.random.standard_normal(shape) * shape[0] ** -0.5 if len(shape) > 1 else 1
        array = (np.ones(shape) * values).astype(self.numpy)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, name, value):
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def norm(self, x, module):
        weight = self.weight(f"{module}.weight", HIDDEN)
        return self.node(
            "RMSNormalization", [x, weight], module, module, axis=-1, epsilon=1e-5, stash_type=1
        )

    def linear(self, x, module, size_in, size_out):
        weight = self.weight(f"{module}.weight", size_in, size_out)
        return self.node("MatMul", [x, weight], module, module)

    def positions(self, x):
        angles = np.outer(np.arange(POSITIONS), 10000.0 ** (-np.arange(0, D, 2) / D))
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            self.constant(name, table.astype(self.numpy))
        shape = self.node("Shape", [x], "shape", "", start=0, end=2)
        length = self.node(
            "Gather", [shape, self.constant("one", np.int64(1))], "length", "", axis=0
        )
        row = self.node("Range", [self.constant("zero", np.int64(0)), length, "one"], "row", "")
        row = self.node(
            "Unsqueeze", [row, self.constant("front", np.array([0], np.int64))], "row2", ""
        )
        return self.node("Expand", [row, shape], "position_ids", "")

    def block(self, x, index, positions):
        m = f"layers.{index}"
        y = self.norm(x, f"{m}.input_layernorm")
        sizes = {"q": HIDDEN, "k": KV_HEADS * D, "v": KV_HEADS * D}
        q, k, v = (self.linear(y, f"{m}.self_attn.{n}_proj", HIDDEN, s) for n, s in sizes.items())
        rotated = [
            self.node(
                "RotaryEmbedding",
                [value, "cos", "sin", positions],
                f"{m}.self_attn/{name}_rotated",
                f"{m}.self_attn",
                num_heads=heads,
            )
            for name, value, heads in (("q", q, HEADS), ("k", k, KV_HEADS))
        ]
        a = self.node(
            "Attention",
            [*rotated, v],
            f"{m}.self_attn/context",
            f"{m}.self_attn",
            is_causal=1,
            q_num_heads=HEADS,
            kv_num_heads=KV_HEADS,
        )
        o = self.linear(a, f"{m}.self_attn.o_proj", HIDDEN, HIDDEN)
        x = self.node("Add", [x, o], f"{m}/attended", m)
        y = self.norm(x, f"{m}.post_attention_layernorm")
        gate, up = (self.linear(y, f"{m}.mlp.{n}_proj", HIDDEN, INNER) for n in ("gate", "up"))
        y = self.node("SwiGLU", [gate, up], f"{m}.mlp/gated", f"{m}.mlp", domain="blockforge")
        return self.node("Add", [x, self.linear(y, f"{m}.mlp.down_proj", INNER, HIDDEN)], m, m)

    def build(self):
        x, positions = "hidden_states", self.positions("hidden_states")
        for index in range(self.first, self.first + self.blocks):
            x = self.block(x, index, positions)
        self.nodes[-1].output[0] = "output"
        edge = [
            helper.make_tensor_value_info(name, self.onnx, ["batch", "sequence", HIDDEN])
            for name in ("hidden_states", "output")
        ]
        graph = helper.make_graph(self.nodes, "chain", edge[:1], edge[1:], self.weights)
        return typed(graph, [swiglu()])


def swiglu():
    """The body of blockforge::SwiGLU."""
    return helper.make_function(
        "blockforge",
        "SwiGLU",
        ["gate", "up"],
        ["y"],
        [
            helper.make_node("Swish", ["gate"], ["swished"], name="Swish"),
            helper.make_node("Mul", ["swished", "up"], ["y"], name="Mul"),
        ],
        [helper.make_opsetid("", OPSET)],
    )


def typed(graph, functions=(), opset=OPSET):
    """The model of `graph`, with the type of every value declared."""
    domains = {"": opset} | {f.domain: 1 for f in functions}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()],
        functions=list(functions),
        ir_version=11,
    )
    onnx.checker.check_model(model)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def write(model, folder, name="model.onnx"):
    """Save with all weights beside the graph; returns the path."""
    path, copy = folder / name, onnx.ModelProto()
    copy.CopyFrom(model)  # onnx.save moves the weights out of what it is given
    onnx.save(copy, path, save_as_external_data=True, location=f"{name}.data", size_threshold=256)
    return path


def model_of(nodes, inputs, outputs, initializers=(), opset=OPSET):
    """A model from nodes and `name -> (type, dims)` of inputs and outputs; initializers are name -> array."""
    infos = [
        [
            helper.make_tensor_value_info(n, TYPES[t][0] if t in TYPES else t, dims)
            for n, (t, dims) in edge.items()
        ]
        for edge in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in dict(initializers).items()]
    return typed(helper.make_graph(nodes, "g", *infos, tensors), opset=opset)


def fp8_linear():
    """One matrix product in FP8: x [b, HIDDEN] and its weight through QuantizeLinear and DequantizeLinear."""
    scale = np.array(0.05, np.float16)
    nodes = []
    for name in ("x", "w"):
        nodes += [
            helper.make_node(
                "QuantizeLinear", [name, "s"], [f"{name}q"], output_dtype=TensorProto.FLOAT8E4M3FN
            ),
            helper.make_node("DequantizeLinear", [f"{name}q", "s"], [f"{name}d"]),
        ]
    nodes.append(helper.make_node("MatMul", ["xd", "wd"], ["y"], name="MatMul"))
    edge = ("fp16", ["b", HIDDEN])
    return model_of(
        nodes, {"x": edge}, {"y": edge}, {"w": np.eye(HIDDEN, dtype=np.float16), "s": scale}
    )
