"""Operators that TensorRT's parser lacks, and forms of the others that it refuses. Measured on TensorRT-RTX 1.7.1."""

from collections.abc import Iterator

import onnx_ir as ir

from ...core.domain import DOMAIN
from ...graph.rules import domain_of, operator_name
from .parser_operators import KNOWN
from .row import RTX, Row, Spot
from .scene import Scene, constant, input_of, label, sizes

# Known to the parser, which then asks for a plugin that TensorRT-RTX does not have.
PLUGIN_ONLY = frozenset({"NonZero", "LinearAttention", "CausalConvWithState", "RoiAlign"})
# Operators of other domains that the parser reads as their own domain (com.microsoft, trt) means them.
CONTRIBUTED = frozenset(
    [
        "Gelu",
        "GroupQueryAttention",
        "MatMulNBits",
        "MultiHeadAttention",
        "QMoE",
        "QuantizeLinear",
        "DequantizeLinear",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "Trilu",
        "GridSample",
    ]
)
MOST_K = 3840  # TopK
OLDEST_OPSET = 7  # of the operators that broadcast
BROADCAST = (
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "Less",
    "Max",
    "Mean",
    "Min",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Sum",
    "Xor",
)
HIGHEST_RANK = 8


def _unknown(scene: Scene) -> Iterator[Spot]:
    """Bodies of functions are looked at once they are inlined; full TensorRT may have a plugin by any name in domain trt."""
    plugins = (DOMAIN,) if scene.target.runtime in RTX else (DOMAIN, "trt")
    for node in scene.nodes:
        if node.op_type in KNOWN or node.op_identifier() in scene.model.functions:
            continue
        domain = domain_of(node)
        if domain not in plugins:
            body = "" if domain == "" else " without a function body"
            yield Spot(label(node), f"operator {operator_name(node)}{body}")


def _foreign(scene: Scene) -> Iterator[Spot]:
    for node in scene.nodes:
        name, domain = node.op_type, domain_of(node)
        if (
            domain in ("", DOMAIN)
            or name not in KNOWN
            or name in CONTRIBUTED
            or name.startswith("TRT_")
        ):
            continue
        if node.op_identifier() not in scene.model.functions:
            yield Spot(label(node), f"operator {operator_name(node)} without a function body")


def _plugin_only(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(*sorted(PLUGIN_ONLY)):
        yield Spot(label(node), f"operator {node.op_type}")


def _bodiless(scene: Scene) -> Iterator[Spot]:
    for node in scene.nodes:
        if domain_of(node) == DOMAIN and node.op_identifier() not in scene.model.functions:
            yield Spot(label(node), f"operator {DOMAIN}::{node.op_type} without its function body")


def _top_k(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("TopK"):
        k = constant(input_of(node, 1))
        if k is not None and k.size == 1 and int(k.flat[0]) > MOST_K:
            yield Spot(label(node), f"k={int(k.flat[0])}")


def _scatter_reduction(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("ScatterND", "ScatterElements"):
        how = node.attributes.get("reduction")
        if how is not None and not how.is_ref() and how.as_string() != "none":
            yield Spot(label(node), f"reduction {how.as_string()!r}")


def _dropout(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Dropout"):
        training = constant(input_of(node, 2))
        if training is not None and bool(training.any()):
            yield Spot(label(node), "training_mode is true")


def _opset(scene: Scene) -> Iterator[Spot]:
    version = scene.model.opset_imports.get("", OLDEST_OPSET)
    if version < OLDEST_OPSET:
        for node in scene.of(*BROADCAST):
            yield Spot(label(node), f"{node.op_type} at opset {version}")


def _rank(scene: Scene) -> Iterator[Spot]:
    for value in (*scene.model.graph.inputs, *scene.model.graph.initializers.values()):
        if value.shape is not None and len(value.shape) > HIGHEST_RANK:
            yield Spot(str(value.name), f"rank {len(value.shape)}")


def _branches(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("If"):
        if constant(input_of(node, 0)) is not None:
            continue  # TensorRT keeps the branch that is taken
        graphs = [node.attributes.get(f"{side}_branch") for side in ("then", "else")]
        if not all(g is not None and not g.is_ref() for g in graphs):
            continue
        then, other = (g.as_graph().outputs for g in graphs if g is not None)
        for index, (first, second) in enumerate(zip(then, other, strict=False)):
            a, b = sizes(first), sizes(second)
            if a is None or b is None:
                continue
            if len(a) != len(b) or any(
                None not in (m, n) and m != n for m, n in zip(a, b, strict=True)
            ):
                yield Spot(label(node), f"output {index} is {a} in one branch, {b} in the other")


REDUCTIONS = tuple(
    f"Reduce{name}"
    for name in (
        "L1",
        "L2",
        "LogSum",
        "LogSumExp",
        "Max",
        "Mean",
        "Min",
        "Prod",
        "Sum",
        "SumSquare",
    )
)
# operator -> inputs that decide sizes, axes or counts, so that TensorRT needs their values when it plans
SIZING = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4), "Pad": (1,),
    "Range": (0, 1, 2), "Split": (1,), "TopK": (1,), "OneHot": (1,), "CumSum": (1,), "Resize": (2, 3),
    "Unsqueeze": (1,), "Squeeze": (1,), "Upsample": (1,), "STFT": (1, 3), "Dropout": (2,),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(REDUCTIONS, (1,)),
}  # fmt: skip
_SCALAR = frozenset(
    [
        "Identity",
        "Cast",
        "Squeeze",
        "Unsqueeze",
        "Reshape",
        "Concat",
        "Gather",
        "Slice",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Neg",
        "Min",
        "Max",
        "Where",
        "Floor",
        "Ceil",
        "Expand",
        "Transpose",
    ]
)  # what shape arithmetic is made of


def _shape_inputs(scene: Scene) -> Iterator[Spot]:
    graph_inputs = {v for v in scene.model.graph.inputs if v.const_value is None}
    seen: dict[ir.Value, None] = {}
    for node in scene.of(*SIZING, "Loop"):
        if node.op_type == "Loop" and len(node.outputs) <= len(node.inputs) - 2:
            continue  # nothing is stacked: the trip count decides no size
        places = SIZING.get(node.op_type, (0,))
        stack = [v for i in places if (v := input_of(node, i)) is not None]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen[value] = None
            if value in graph_inputs:
                yield Spot(str(value.name), f"it decides a size ({node.op_type} {label(node)})")
                continue
            producer = value.producer()
            if producer is not None and domain_of(producer) == "" and producer.op_type in _SCALAR:
                stack += [v for v in producer.inputs if v is not None]


def _integer_products(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("MatMul", "Gemm"):
        x = input_of(node, 0)
        if x is not None and x.dtype is not None and not x.dtype.is_floating_point():
            yield Spot(label(node), f"a product of {x.dtype.name} numbers")


def _function_quantize(scene: Scene) -> Iterator[Spot]:
    for identifier, function in scene.model.functions.items():
        calls = [n for n in scene.nodes if n.op_identifier() == identifier]
        inner = next((n for n in function if n.op_type == "QuantizeLinear"), None)
        if len(calls) > 1 and inner is not None:
            yield Spot(
                label(calls[1]),
                f"function {identifier[1]} with a QuantizeLinear, called {len(calls)} times",
            )


PARSER = "The parser refuses the node"

ROWS = (
    Row("operator.unknown", "*", "the parser does not know the operator", PARSER,
        "Use operators that it knows, or give the operator a function body", _unknown),
    Row("operator.foreign", "*", "an operator of another domain has the name of one that the parser knows",
        "It builds, and computes ONNX's operator of that name: the parser overlooks domains",
        "Use ONNX's domain if that is meant, or give the operator a function body", _foreign, "silent"),
    Row("operator.plugin", "NonZero, LinearAttention, CausalConvWithState, RoiAlign", "the operator is used",
        "The parser asks for a plugin that TensorRT-RTX does not have", "Compute the same with other operators",
        _plugin_only, runtimes=RTX),
    Row("operator.body", "blockforge operators", "the model has no body for it", "The parser refuses the node",
        "Write the model with function bodies", _bodiless, runtimes=RTX),
    Row("topk.k", "TopK", f"k is above {MOST_K}", "The build fails", f"Keep k at {MOST_K} or below", _top_k),
    Row("scatter.reduction", "ScatterND, ScatterElements", "reduction is not none", PARSER,
        "Scatter once, or sum with a product of one-hot vectors", _scatter_reduction),
    Row("dropout.training", "Dropout", "training_mode is true", PARSER, "Export the model in eval mode", _dropout),
    Row("opset.old", "Add, Mul, ...", f"an operator broadcasts as before opset {OLDEST_OPSET}", PARSER,
        "Convert it with onnx.version_converter", _opset),
    Row("rank.high", "*", f"an input or weight has more than {HIGHEST_RANK} axes", "The parser refuses the graph",
        "Reshape to fewer axes", _rank),
    Row("if.branches", "If", "its branches give outputs of different shapes", "The build fails",
        "Give both branches one shape, or settle the condition before export", _branches),
    Row("input.decides-size", "*", "the values of an input decide sizes",
        "It is refused: the profile gives sizes of inputs, not values", "Derive the size from the shape of another input",
        _shape_inputs),
    Row("matmul.integer", "MatMul, Gemm", "the operands are integers", PARSER,
        "Cast to a floating type, or quantise with Q/DQ", _integer_products),
    Row("function.quantize", "*", "a function with a QuantizeLinear is called twice",
        "The parser gives two layers one name, and stops", "Inline the functions", _function_quantize, legalized=True),
)  # fmt: skip
