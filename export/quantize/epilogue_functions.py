"""Bodies of the operators that quantise their own result: the nodes that they replace, in one function.

    RMSNorm(x, weight) -> y                 ->  RMSNormQuantize(x, weight, scale) -> e4m3(y / scale)
    AddRMSNorm(x, skip, weight) -> y, total ->  AddRMSNormQuantize(x, skip, weight, scale) -> e4m3(y / scale), total

Inputs, outputs and attributes are those of the plugin of that name, which full TensorRT may run instead. The body
rounds where the graph did, so folding changes no bit; the plugin's kernel keeps FP32 until it quantises.
"""

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ...core.domain import DOMAIN, DOMAIN_VERSION

NORM = "<axis = -1, epsilon: float = @epsilon, stash_type = 1>"
NORMS = {  # standard operator -> the plugin's name, the vectors beside x
    "RMSNormalization": ("RMSNorm", ("weight",)),
    "LayerNormalization": ("LayerNorm", ("weight", "bias")),
}
GATES = {  # standard activation -> the plugin's name, its attributes, the activation's nodes
    "Swish": ("SwiGLU", "", "activated = Swish(gate)"),
    "Sigmoid": ("SwiGLU", "", "opened = Sigmoid(gate)\nactivated = Mul(gate, opened)"),
    "Gelu": (
        "GeGLU",
        "<approximate>",
        "activated = Gelu<approximate: string = @approximate>(gate)",
    ),
}


def norm_function(operator: str, *, residual: bool, opset: int) -> onnx.FunctionProto:
    """`operator` of x, or of the sum of x and skip, over the last axis."""
    name, vectors = NORMS[operator]
    others = ", ".join(vectors)
    if not residual:
        body = f"y = {operator} {NORM} (x, {others})"
        return _parsed(f"{name} <epsilon> (x, {others}) => (y)", body, opset)
    body = f"total = Add(x, skip)\ny = {operator} {NORM} (total, {others})"
    return _parsed(f"Add{name} <epsilon> (x, skip, {others}) => (y, total)", body, opset)


def gate_function(operator: str, opset: int) -> onnx.FunctionProto:
    """The activation `operator` of gate (for Sigmoid times gate), times up."""
    name, declared, activation = GATES[operator]
    body = f"{activation}\ny = Mul(activated, up)"
    return _parsed(f"{name} {declared} (gate, up) => (y)", body, opset)


def _parsed(head: str, body: str, opset: int) -> onnx.FunctionProto:
    text = f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]>\n{head} {{\n{body}\n}}'
    parsed: onnx.FunctionProto = onnx.parser.parse_function(text)
    return parsed


def packed(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """The same gate of the halves of one value, the gate's half first."""
    made = _copy(function, f"{function.name}Packed")
    whole = _free(made, "gate_up")
    split = onnx.helper.make_node(
        "Split", [whole], list(function.input), name="Split", axis=-1, num_outputs=2
    )
    del made.input[:], made.node[:]
    made.input.append(whole)
    made.node.extend([split, *function.node])
    return made


def quantizing(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """The same function with one more input, a scale, and its first output in E4M3."""
    made = _copy(function, f"{function.name}Quantize")
    scale = _free(made, "scale")
    made.input.append(scale)
    codes = _free(made, "codes")
    made.node.append(
        onnx.helper.make_node(
            "QuantizeLinear",
            [function.output[0], scale],
            [codes],
            name="QuantizeLinear",
            output_dtype=onnx.TensorProto.FLOAT8E4M3FN,
            saturate=1,
        )
    )
    made.output[0] = codes
    return made


def declare(model: ir.Model, function: onnx.FunctionProto) -> bool:
    """Add the function to the model; False where the model has another of that name."""
    made = ir.serde.deserialize_function(function)
    known = model.functions.get(made.identifier())
    if known is not None:
        return _bytes(known) == _bytes(made)
    model.functions[made.identifier()] = made
    model.opset_imports[DOMAIN] = DOMAIN_VERSION
    model.ir_version = max(model.ir_version or 0, 8)
    return True


def _bytes(function: ir.Function) -> bytes:
    found: bytes = ir.serde.serialize_function(function).SerializeToString(deterministic=True)
    return found


def _copy(function: onnx.FunctionProto, name: str) -> onnx.FunctionProto:
    made = onnx.FunctionProto()
    made.CopyFrom(function)
    made.name = name
    del made.value_info[:]
    return made


def _free(function: onnx.FunctionProto, wanted: str) -> str:
    """A value name that the function does not use, `wanted` where it can be."""
    nodes: Sequence[onnx.NodeProto] = function.node
    taken = {*function.input, *(name for n in nodes for name in (*n.input, *n.output))}
    while wanted in taken:
        wanted += "_"
    return wanted
