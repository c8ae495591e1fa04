"""Edits that plant a fault in an exported graph, in place."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx_ir as ir

from blockforge.plugins.registry import plugin_named

Edit = Callable[[ir.Model], None]


def node(model: ir.Model, name: str) -> ir.Node:
    (found,) = [n for n in model.graph if n.name == name]
    return found


def value(model: ir.Model, name: str) -> ir.Value:
    return ir.convenience.create_value_mapping(model.graph)[name]


def attribute(name: str, **changes: object) -> Edit:
    def edit(model: ir.Model) -> None:
        for key, new in changes.items():
            if new is None:
                node(model, name).attributes.pop(key)
            else:
                node(model, name).attributes[key] = ir.convenience.convert_attribute(key, new)

    return edit


def weight(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    def edit(model: ir.Model) -> None:
        tensor = model.graph.initializers[name]
        array = tensor.const_value.numpy()
        tensor.const_value = ir.tensor(
            np.ascontiguousarray(change(array.copy())).astype(array.dtype), name=name
        )

    return edit


def rewire(name: str, **operands: str) -> Edit:
    """operands: i0="value" makes the node's input 0 that value."""

    def edit(model: ir.Model) -> None:
        for key, other in operands.items():
            node(model, name).replace_input_with(int(key[1:]), value(model, other))

    return edit


def swap(name: str, one: int = 0, two: int = 1) -> Edit:
    def edit(model: ir.Model) -> None:
        here = node(model, name)
        a, b = here.inputs[one], here.inputs[two]
        here.replace_input_with(one, b)
        here.replace_input_with(two, a)

    return edit


def constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    made = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    made.shape, made.dtype = ir.Shape(array.shape), made.const_value.dtype
    model.graph.register_initializer(made)
    return made


def become(
    name: str, op_type: str, keep: tuple[int, ...], domain: str = "", **attributes: object
) -> Edit:
    """The node turns into another operator on some of its inputs; its outputs keep their names."""

    def edit(model: ir.Model) -> None:
        old = node(model, name)
        new = ir.Node(
            domain,
            op_type,
            [old.inputs[i] for i in keep],
            ir.convenience.convert_attributes(attributes),
            name=name,
            num_outputs=1,
        )
        take_over(model, old, [new], new.outputs[0])

    return edit


def take_over(model: ir.Model, old: ir.Node, new: list[ir.Node], out: ir.Value) -> None:
    gone = old.outputs[0]
    out.name, out.dtype, out.shape = gone.name, gone.dtype, gone.shape
    model.graph.insert_after(old, new)
    gone.name = f"{gone.name}/gone"
    ir.convenience.replace_all_uses_with(gone, out, replace_graph_outputs=True)
    model.graph.remove(old, safe=True)


def before(
    name: str, index: int, op_type: str, extra: tuple[np.ndarray, ...] = (), **attributes: object
) -> Edit:
    """Put an operator in front of one input of the node."""

    def edit(model: ir.Model) -> None:
        here = node(model, name)
        old = here.inputs[index]
        constants = [constant(model, f"planted/{i}", array) for i, array in enumerate(extra)]
        new = ir.Node(
            "",
            op_type,
            [old, *constants],
            ir.convenience.convert_attributes(attributes),
            name="planted",
        )
        new.outputs[0].name, new.outputs[0].dtype, new.outputs[0].shape = (
            "planted",
            old.dtype,
            old.shape,
        )
        model.graph.insert_before(here, new)
        here.replace_input_with(index, new.outputs[0])

    return edit


def untouched(_model: ir.Model) -> None:
    """For a fault that lies in the precision alone."""


def bad_row(w: np.ndarray, index: int, factor: float) -> np.ndarray:
    w[index] *= factor
    return w


def bad_column(w: np.ndarray, index: int) -> np.ndarray:
    w[:, index] += 0.5 * np.abs(w).max()
    return w


def heads(w: np.ndarray, order: list[int], axis: int, size: int) -> np.ndarray:
    index = np.concatenate([np.arange(h * size, (h + 1) * size) for h in order])
    return np.take(w, index, axis)


def exchanged_rows(w: np.ndarray, one: int, two: int) -> np.ndarray:
    w[[one, two]] = w[[two, one]]
    return w


def look_ahead(name: str, ahead: int) -> Edit:
    """Attention without is_causal, and a mask that lets a query see `ahead` keys further."""

    def edit(model: ir.Model) -> None:
        here = node(model, name)
        size = 24
        seen = np.tril(np.ones((size, size), bool), ahead)
        mask = np.where(seen, 0.0, -np.inf).astype(here.inputs[0].dtype.numpy())
        here.attributes["is_causal"] = ir.AttrInt64("is_causal", 0)
        made = constant(model, "planted/mask", mask)
        inputs = [*here.inputs[:3], made]
        new = ir.Node(
            "", "Attention", inputs, list(here.attributes.values()), name=name, num_outputs=1
        )
        take_over(model, here, [new], new.outputs[0])

    return edit


def tiled_heads(name: str, group: int, size: int) -> Edit:
    """K and V repeated as h0 h1 h0 h1 instead of h0 h0 h1 h1, then one key head for each query head."""

    def edit(model: ir.Model) -> None:
        here = node(model, name)
        repeats = constant(model, "planted/repeats", np.array([1, 1, group], np.int64))
        for index in (1, 2):
            old = here.inputs[index]
            tile = ir.Node("", "Tile", [old, repeats], name=f"planted/tile_{index}")
            tile.outputs[0].name, tile.outputs[0].dtype = f"planted/tile_{index}", old.dtype
            model.graph.insert_before(here, tile)
            here.replace_input_with(index, tile.outputs[0])
        heads_ = here.attributes["q_num_heads"].as_int()
        here.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", heads_)

    return edit


def narrow_angles(model: ir.Model) -> None:
    """RoPE's angles in fp16 before cosine and sine."""
    mul = node(model, "rotary_emb/Mul")
    angles = mul.outputs[0]
    for index in (0, 1):
        before_cast(model, mul, index, f"planted/{index}")
    angles.dtype = ir.DataType.FLOAT16
    for name in ("rotary_emb/Cos", "rotary_emb/Sin"):
        node(model, name).outputs[0].dtype = ir.DataType.FLOAT16


def before_cast(model: ir.Model, here: ir.Node, index: int, name: str) -> None:
    old = here.inputs[index]
    cast = ir.Node("", "Cast", [old], [ir.AttrInt64("to", 10)], name=name)
    cast.outputs[0].name, cast.outputs[0].dtype, cast.outputs[0].shape = (
        name,
        ir.DataType.FLOAT16,
        old.shape,
    )
    model.graph.insert_before(here, cast)
    here.replace_input_with(index, cast.outputs[0])


def fp16_statistics(name: str) -> Edit:
    """x / sqrt(mean(x^2) + eps) * w, every step in fp16."""

    def edit(model: ir.Model) -> None:
        old = node(model, name)
        x, w = old.inputs
        half = ir.DataType.FLOAT16
        eps = constant(model, "planted/eps", np.array(1e-5, np.float16))
        axes = constant(model, "planted/axes", np.array([-1], np.int64))
        made: list[ir.Node] = []

        def op(kind: str, *inputs: ir.Value) -> ir.Value:
            new = ir.Node("", kind, inputs, name=f"{name}/{kind}_{len(made)}")
            new.outputs[0].name, new.outputs[0].dtype = f"planted/{kind}_{len(made)}", half
            made.append(new)
            return new.outputs[0]

        square = op("Mul", x, x)
        root = op("Sqrt", op("Add", op("ReduceMean", square, axes), eps))
        out = op("Mul", op("Div", x, root), w)
        take_over(model, old, made, out)

    return edit


def fp8_activation(name: str, largest: float) -> Edit:
    """Quantise and dequantise the node's input 0 to FP8 as if its largest number were `largest`."""

    def edit(model: ir.Model) -> None:
        here = node(model, name)
        x = here.inputs[0]
        kind = x.dtype.numpy()
        scale = constant(model, "planted/scale", np.array(largest / 448.0, kind))
        zero = constant(model, "planted/zero", np.array(0.0, ml_dtypes.float8_e4m3fn))
        quantise = ir.Node("", "QuantizeLinear", [x, scale, zero], name="planted/quantize")
        quantise.outputs[0].name, quantise.outputs[0].dtype = "planted/q", ir.DataType.FLOAT8E4M3FN
        back = ir.Node(
            "", "DequantizeLinear", [quantise.outputs[0], scale], name="planted/dequantize"
        )
        back.outputs[0].name, back.outputs[0].dtype = "planted/dq", x.dtype
        quantise.outputs[0].shape = back.outputs[0].shape = x.shape
        model.graph.insert_before(here, [quantise, back])
        here.replace_input_with(0, back.outputs[0])

    return edit


def gelu_gate(name: str) -> Edit:
    """blockforge::SwiGLU becomes blockforge::GeGLU."""

    def edit(model: ir.Model) -> None:
        function = ir.serde.deserialize_function(plugin_named("GeGLU").body)
        model.functions[function.identifier()] = function
        become(name, "GeGLU", (0, 1), "blockforge", approximate="none")(model)

    return edit


def add_to_positions(shift: int) -> Edit:
    def edit(model: ir.Model) -> None:
        here = node(model, "rotary_emb/Expand")
        made = constant(model, "planted/shift", np.array(shift, np.int64))
        old = here.inputs[0]
        add = ir.Node("", "Add", [old, made], name="planted/Add")
        add.outputs[0].name, add.outputs[0].dtype, add.outputs[0].shape = (
            "planted/add",
            old.dtype,
            old.shape,
        )
        model.graph.insert_before(here, add)
        here.replace_input_with(0, add.outputs[0])

    return edit
