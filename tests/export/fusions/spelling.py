"""Random but true spellings of the operators, from an algebra of equal forms; and one wrong step put into each.

A `Speller` writes nodes and draws its choices from hypothesis; `spoil` names the one place that is made wrong.
"""

import math
from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16


class Speller:
    """Nodes of one graph, with choices drawn as they are needed."""

    def __init__(self, draw: Callable, spoil: str = "", opset: int = 20) -> None:
        self.draw, self.spoil, self.opset = draw, spoil, opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def pick(self, *options):
        """One of the options."""
        return self.draw(st.sampled_from(options))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes):
        """Add a node, at times followed by an Identity; returns its output's name."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        if outputs > 1:
            return names
        if self.draw(st.integers(0, 11)) == 7:
            self.nodes.append(helper.make_node("Identity", names, [f"{names[0]}_same"]))
            return f"{names[0]}_same"
        return names[0]

    def constant(self, value, dtype=np.float32) -> str:
        """A constant, as an initializer or a Constant node."""
        array = np.asarray(value, dtype=dtype)
        if self.draw(st.booleans()):
            name = f"c{len(self.initializers)}"
            self.initializers.append(numpy_helper.from_array(array, name))
            return name
        name = f"k{len(self.nodes)}"
        self.nodes.append(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
        )
        return name

    def number(self, value: float) -> str:
        """A scalar of rank 0 or 1."""
        return self.constant(self.pick(value, [value]))

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def input(self, name: str, *dims, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def either(self, kind: str, a: str, b: str) -> str:
        """A commutative operator, its operands in either order."""
        return self.op(kind, *self.pick((a, b), (b, a)))

    def times(self, value: str, factor: float) -> str:
        """value * factor, as a product or a quotient."""
        if self.draw(st.booleans()):
            return self.either("Mul", value, self.number(factor))
        return self.op("Div", value, self.number(1 / factor))

    def reduce(self, kind: str, value: str, axis: int, keep: int = 1) -> str:
        """A reduction over one axis, the axes spelled as the opset has them."""
        if self.opset < 18 and kind != "ReduceSum":
            return self.op(kind, value, axes=[axis], keepdims=keep)
        return self.op(kind, value, self.ints(axis), keepdims=keep)

    def slice(self, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
        return self.op(
            "Slice", value, self.ints(start), self.ints(end), self.ints(axis), self.ints(step)
        )

    def model(self, *outputs: tuple[str, tuple]) -> onnx.ModelProto:
        """The graph with these outputs, checked."""
        infos = []
        for i, (name, dims) in enumerate(outputs):
            self.nodes.append(helper.make_node("Identity", [name], [f"out{i}"]))
            infos.append(helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, dims))
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos, self.initializers)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def square(s: Speller, x: str) -> str:
    if s.spoil == "cube":
        return s.op("Pow", s.op("Abs", x), s.number(3.0))
    form = s.pick("pow", "mul", "abs")
    if form == "abs":
        x = s.op("Abs", x)
    return s.op("Mul", x, x) if form == "mul" else s.op("Pow", x, s.number(2.0))


def mean(s: Speller, x: str, rank: int = 3, squares: bool = False, spoiled: bool = False) -> str:
    """The mean over the last axis with that axis kept; of squares, when `squares`."""
    axis = s.pick(-1, rank - 1)
    if spoiled and s.spoil == "other axis":
        axis = rank - 2
    scale = WIDTH * (2 if spoiled and s.spoil == "wrong count" else 1)
    more = ("square sum", "einsum", "matrix", "variance") if squares else ()
    form = s.pick("mean", "sum", "squeezed", *more)
    if form in ("einsum", "matrix", "variance") and s.spoil:
        form = "mean"
    if form == "einsum":
        dot = s.op("Einsum", x, x, equation=s.pick("...d,...d->...", "bsd,bsd->bs"))
        return s.times(s.op("Unsqueeze", dot, s.ints(-1)), 1 / WIDTH)
    if form == "matrix":
        return s.op(
            "MatMul", square(s, x), s.constant(np.full((WIDTH, s.pick(1, WIDTH)), 1 / WIDTH))
        )
    if form == "variance":
        first = mean(s, x, rank)
        second = mean(s, square(s, s.op("Sub", x, mean(s, x, rank))), rank)
        return s.either("Add", second, square(s, first))
    if form == "square sum" and s.spoil != "cube":
        return s.times(s.reduce("ReduceSumSquare", x, axis), 1 / scale)
    if squares:
        x = square(s, x)
    if form == "mean" and scale == WIDTH:
        return s.reduce("ReduceMean", x, axis)
    if form == "squeezed" and scale == WIDTH:
        return s.op("Unsqueeze", s.reduce("ReduceMean", x, axis, keep=0), s.ints(axis))
    return s.times(s.reduce("ReduceSum", x, axis), 1 / scale)


def over_root(s: Speller, numerator: str, power: str, epsilon: float) -> str:
    """numerator / sqrt(power + epsilon)."""
    shift = s.number(epsilon)
    if s.spoil == "epsilon vector":
        shift = s.constant(np.linspace(epsilon, 2 * epsilon, WIDTH))
    inside = s.either("Add", power, shift)
    root = s.pick("div", "reciprocal", "one over", "power", "root of reciprocal")
    if root == "power":
        return s.either("Mul", numerator, s.op("Pow", inside, s.number(-0.5)))
    if root == "root of reciprocal":
        return s.either("Mul", numerator, s.op("Sqrt", s.op("Reciprocal", inside)))
    std = s.op("Sqrt", inside) if s.draw(st.booleans()) else s.op("Pow", inside, s.number(0.5))
    if root == "div":
        return s.op("Div", numerator, std)
    inverse = s.op("Reciprocal", std) if root == "reciprocal" else s.op("Div", s.number(1.0), std)
    return s.either("Mul", numerator, inverse)


def rms_norm(s: Speller) -> onnx.ModelProto:
    """RMSNorm over the last axis of x [b, s, 16]."""
    x = s.input("x", "b", "s", WIDTH)
    other = s.input("z", "b", "s", WIDTH) if s.spoil == "other tensor" else x
    epsilon = s.pick(1e-5, 1e-6, 1e-12)
    weight = (
        s.constant(np.linspace(-0.5, 1.5, WIDTH))
        if s.draw(st.booleans()) or s.spoil == "other axis"
        else None
    )
    if weight and s.draw(st.booleans()):
        weight = s.either("Add", weight, s.number(1.0))
    power = mean(s, x, squares=True, spoiled=True)
    if weight and s.draw(st.booleans()):
        y = over_root(s, s.either("Mul", other, weight), power, epsilon)
    else:
        y = over_root(s, other, power, epsilon)
        y = s.either("Mul", y, weight) if weight else y
    extra = [(power, ("b", "s", 1))] if s.spoil == "escape" else []
    return s.model((y, ("b", "s", WIDTH)), *extra)


def layer_norm(s: Speller) -> onnx.ModelProto:
    """LayerNorm over the last axis of x [b, s, 16]."""
    x = s.input("x", "b", "s", WIDTH)
    other = s.input("z", "b", "s", WIDTH) if s.spoil == "other tensor" else x
    centre = s.op("Sub", other, mean(s, other))
    variance = s.pick("two pass", "moments", "again")
    if s.spoil in ("cube", "other axis", "wrong count"):
        variance = "two pass"
    if variance == "moments":
        first = mean(s, x)
        power = s.op("Sub", mean(s, x, squares=True), square(s, first))
        if s.draw(st.booleans()):
            power = s.either("Max", power, s.number(0.0))
    else:
        again = s.op("Sub", x, mean(s, x)) if variance == "again" or other != x else centre
        power = mean(s, again, squares=True, spoiled=True)
    y = over_root(s, centre, power, s.pick(1e-5, 1e-12))
    if s.draw(st.booleans()) or s.spoil == "other axis":
        y = s.either("Mul", y, s.constant(np.linspace(-0.5, 1.5, WIDTH)))
    if s.draw(st.booleans()):
        y = s.either("Add", y, s.constant(np.linspace(1, 2, WIDTH)))
    extra = [(power, ("b", "s", 1))] if s.spoil == "escape" else []
    return s.model((y, ("b", "s", WIDTH)), *extra)


def sigmoid(s: Speller, x: str) -> str:
    form = s.pick("sigmoid", "exp", "tanh")
    if form == "exp":
        return s.op("Reciprocal", s.either("Add", s.op("Exp", s.op("Neg", x)), s.number(1.0)))
    if form == "tanh":
        half = s.either("Add", s.op("Tanh", s.times(x, 0.5)), s.number(1.0))
        return s.times(half, 0.5)
    return s.op("Sigmoid", x)


def activation(s: Speller, x: str) -> str:
    """SiLU, GELU or its tanh form of x."""
    kind = s.pick("silu", "quick", "gelu", "tanh", "over")
    argument = s.input("w", "b", "s", WIDTH) if s.spoil == "other tensor" else x
    if kind == "over" and s.spoil != "shift":
        return s.op("Div", x, s.either("Add", s.op("Exp", s.op("Neg", argument)), s.number(1.0)))
    if kind in ("silu", "over"):
        gate = sigmoid(s, argument)
        return s.either("Mul", x, s.op("Add", gate, s.number(0.5)) if s.spoil == "shift" else gate)
    if kind == "quick":
        gate = s.op("Sigmoid", s.times(argument, 1.702))
        return s.either("Mul", x, s.op("Add", gate, s.number(0.5)) if s.spoil == "shift" else gate)
    if kind == "gelu":
        inner = s.op("Erf", s.times(argument, math.sqrt(0.5)))
    else:
        cube = (
            s.op("Pow", argument, s.number(3.0))
            if s.draw(st.booleans())
            else s.op("Mul", s.op("Mul", argument, argument), argument)
        )
        inner = s.op(
            "Tanh",
            s.times(s.either("Add", argument, s.times(cube, 0.044715)), math.sqrt(2 / math.pi)),
        )
    one = s.either("Add", inner, s.number(0.75 if s.spoil == "shift" else 1.0))
    place = s.pick("x", "one", "after")
    if place == "x":
        return s.either("Mul", s.times(x, 0.5), one)
    if place == "one":
        return s.either("Mul", x, s.times(one, 0.5))
    return s.times(s.either("Mul", x, one), 0.5)


def gate(s: Speller) -> onnx.ModelProto:
    """activation(gate) * up, the two packed, interleaved or separate."""
    form = s.pick("separate", "chunk", "slice", "interleaved", "select")
    if form == "separate":
        g, u = s.input("g", "b", "s", WIDTH), s.input("u", "b", "s", WIDTH)
    else:
        packed = s.input("p", "b", "s", 2 * WIDTH)
        if form == "chunk":
            g, u = s.op("Split", packed, s.ints(WIDTH, WIDTH), outputs=2, axis=-1)
        elif form == "slice":
            g, u = s.slice(packed, -1, 0, WIDTH), s.slice(packed, 2, WIDTH, 2**62)
        elif form == "interleaved":
            g, u = s.slice(packed, 2, 0, 2**62, 2), s.slice(packed, -1, 1, 2**62, 2)
        else:
            view = s.op("Reshape", packed, s.ints(0, 0, 2, WIDTH))
            g, u = (s.op("Gather", view, s.constant(i, np.int64), axis=2) for i in (0, 1))
    a = activation(s, g)
    y = s.either("Mul", a, u)
    return s.model(
        (y, ("b", "s", WIDTH)), *([(a, ("b", "s", WIDTH))] if s.spoil == "escape" else [])
    )
