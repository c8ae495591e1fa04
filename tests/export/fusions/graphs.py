"""Small graphs in ONNX text, for the tests that want one exact spelling."""

import onnx

HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>\n'


def graph(text: str, opset: int = 20) -> onnx.ModelProto:
    """`name (inputs) => (outputs) <constants> { nodes }` as a checked model; nodes are named n0, n1, ..."""
    model: onnx.ModelProto = onnx.parser.parse_model(HEAD.format(opset=opset) + text)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"n{index}"
    return model


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of the graph in order, constants aside."""
    return [
        f"{n.domain}::{n.op_type}" if n.domain else n.op_type
        for n in model.graph.node
        if n.op_type != "Constant"
    ]


NORM = """norm (float[b, s, 8] x, float[b, s, 8] z) => ({outputs})
<int64[1] last = {{{axis}}}, float two = {{{power}}}, float eps = {{{epsilon}}}, float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
    square = Pow(x, two)
    mean = {reduce}(square, last)
    {root}
    unit = Div({numerator}, rms)
    y = Mul(unit, w)
}}"""
INSIDE = "shifted = Add(mean, eps)\n rms = Sqrt(shifted)"
OUTSIDE = "root = Sqrt(mean)\n rms = Add(root, eps)"


def norm(**changes: str) -> onnx.ModelProto:
    """RMSNorm of x over its last axis, with some parts changed."""
    parts = {
        "outputs": "float[b, s, 8] y",
        "axis": "-1",
        "power": "2.0",
        "epsilon": "0.00001",
        "reduce": "ReduceMean",
        "root": INSIDE,
        "numerator": "x",
    }
    return graph(NORM.format(**{**parts, **changes}))
