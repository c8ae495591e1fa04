"""Operators in forms that TensorRT refuses: attributes, element types, dynamic axes, ranks, outputs. Measured on TensorRT-RTX 1.7.1.

Found by building every node test of ONNX with constant, static and dynamic inputs; each table holds what was refused.
"""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from ...graph.type_names import type_name
from .operator_types import REFUSED
from .row import RTX, Row, Spot
from .scene import Scene, input_of, integer, label, sizes

D = ir.DataType

# (operator, attribute) -> the values that are taken
ATTRIBUTES: dict[tuple[str, str], tuple[object, ...]] = {
    **{(pool, "dilations"): (1,) for pool in ("AveragePool", "LpPool", "MaxPool")},  # each of them
    ("LpPool", "p"): (1, 2),
    ("BatchNormalization", "training_mode"): (0,),
    ("Resize", "antialias"): (0,),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch",),
    ("Resize", "coordinate_transformation_mode"): (
        *(
            "half_pixel",
            "pytorch_half_pixel",
            "tf_half_pixel_for_nn",
            "asymmetric",
            "align_corners",
        ),
    ),
}
# operator -> axes of its first input that must not be dynamic
STATIC_AXES: dict[str, tuple[int, ...]] = {
    "EyeLike": (0, 1),
    "ConvTranspose": (1,),
    "RotaryEmbedding": (-1,),
    "TensorScatter": (-2,),
}
# operator -> the fewest axes of its first input
LEAST_RANK = {"GlobalAveragePool": 3, "GlobalMaxPool": 3, "GlobalLpPool": 3}
# operator -> outputs beyond this number are refused
MOST_OUTPUTS = {"MaxPool": 1}
FROM_QUANTISED = frozenset(
    {D.FLOAT8E4M3FN, D.INT4, D.FLOAT4E2M1}
)  # what only DequantizeLinear may read


def _attributes(scene: Scene) -> Iterator[Spot]:
    for (operator, name), taken in ATTRIBUTES.items():
        for node in scene.of(operator):
            attribute = node.attributes.get(name)
            if attribute is None or attribute.is_ref():
                continue
            given = attribute.value
            values = given if isinstance(given, list | tuple) else (given,)
            if wrong := [v for v in values if v not in taken]:
                yield Spot(
                    label(node), f"{name} {wrong[0]!r}", f"It takes {', '.join(map(str, taken))}"
                )


def _types(scene: Scene) -> Iterator[Spot]:
    for operator in sorted(frozenset[str]().union(*REFUSED.values())):
        for node in scene.of(operator):
            x = input_of(node, 0)
            if x is None or x.dtype is None or x.const_value is not None:
                continue  # constants are read in a wider type
            if operator in REFUSED.get(x.dtype, ()):
                yield Spot(label(node), f"{operator} of {type_name(x.dtype)}")


def _remainders(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Mod"):
        x = input_of(node, 0)
        if x is None or x.dtype in (None, D.INT32, D.INT64) or integer(node, "fmod", 0):
            continue
        yield Spot(label(node), f"fmod=0 of {type_name(x.dtype)}")


def _dynamic_axes(scene: Scene) -> Iterator[Spot]:
    for operator, axes in STATIC_AXES.items():
        for node in scene.of(operator):
            x = sizes(input_of(node, 0))
            if x is None:
                continue
            for axis in axes:
                if -len(x) <= axis < len(x) and x[axis] is None:
                    yield Spot(label(node), f"axis {axis % len(x)} of its input is dynamic")
                    break


def _ranks(scene: Scene) -> Iterator[Spot]:
    for operator, least in LEAST_RANK.items():
        for node in scene.of(operator):
            x = sizes(input_of(node, 0))
            if x is not None and len(x) < least:
                yield Spot(
                    label(node), f"an input of rank {len(x)}", f"Give it {least} axes or more"
                )


def _vectors(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("MatMul"):
        a, b = (sizes(input_of(node, i)) for i in (0, 1))
        if a is not None and b is not None and len(a) == 1 and len(b) > 2 and b[0] != 1:
            yield Spot(label(node), f"a vector times matrices of rank {len(b)}")


def _outputs(scene: Scene) -> Iterator[Spot]:
    for operator, most in MOST_OUTPUTS.items():
        for node in scene.of(operator):
            if len(node.outputs) > most:
                yield Spot(label(node), f"{len(node.outputs)} outputs")


def _operators(*names: str) -> Callable[[Scene], Iterator[Spot]]:
    def check(scene: Scene) -> Iterator[Spot]:
        for node in scene.of(*names):
            yield Spot(label(node), f"operator {node.op_type}")

    return check


def _from_quantised(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Cast", "CastLike"):
        x = input_of(node, 0)
        if x is not None and x.dtype in FROM_QUANTISED and x.const_value is None:
            yield Spot(label(node), f"a {node.op_type} from {type_name(x.dtype)}")


def _like_quantised(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("CastLike"):
        like = input_of(node, 1)
        if like is not None and like.dtype in FROM_QUANTISED:
            yield Spot(label(node), f"a CastLike to {type_name(like.dtype)}")


def _endless(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Loop"):
        if input_of(node, 1) is None:
            yield Spot(label(node), "no condition")


def _no_tensors(scene: Scene) -> Iterator[Spot]:
    for value in scene.model.graph.inputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            yield Spot(str(value.name), f"its type is {type(value.type).__name__}")


PARSER = "The parser refuses the node"

ROWS = (
    Row("operator.attribute", "AveragePool, LpPool, ...", "an attribute has a value that TensorRT lacks", PARSER,
        "Use a value that it takes", _attributes),
    Row("operator.type", "Add, Clip, Celu, ...", "the operator lacks the element type of its input", PARSER,
        "Cast the input to fp32, fp16 or int32", _types),
    Row("mod.type", "Mod", "fmod is 0 and the numbers are neither int32 nor int64", PARSER,
        "Set fmod=1 for floats, cast other integers to int32", _remainders),
    Row("shape.dynamic", "EyeLike, ConvTranspose, ...", "an axis is dynamic that must be known", PARSER,
        "Give that axis a size", _dynamic_axes),
    Row("shape.rank", "GlobalAveragePool, ...", "the input has too few axes", PARSER, "Add axes of size 1", _ranks),
    Row("matmul.vector", "MatMul", "a vector is multiplied with more than one matrix", PARSER,
        "Make it a matrix of one row, and squeeze the result", _vectors),
    Row("operator.outputs", "MaxPool", "it has a second output", PARSER, "Drop the indices", _outputs),
    Row("operator.kernel", "NonMaxSuppression", "the operator is used", "The build fails: no kernel implements it",
        "Suppress outside of the engine", _operators("NonMaxSuppression"), runtimes=RTX),
    Row("cast.from", "Cast, CastLike", "it reads a type that only DequantizeLinear may read", "The build fails",
        "Use DequantizeLinear", _from_quantised),
    Row("cast.like", "CastLike", "it casts to a type that only QuantizeLinear may give", "The build fails",
        "Use QuantizeLinear", _like_quantised),
    Row("loop.condition", "Loop", "it has no condition", PARSER, "Give it the constant true", _endless, legalized=True),
    Row("input.kind", "*", "an input is no tensor", "The parser refuses the graph", "Make every input a tensor", _no_tensors),
)  # fmt: skip
