"""Forms of QuantizeLinear and DequantizeLinear that TensorRT refuses, ignores or undoes. Measured on TensorRT-RTX 1.7.1."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...graph.type_names import type_name
from .row import Check, Row, Spot
from .scene import Scene, constant, input_of, integer, label, sizes, tensor_of

D = ir.DataType
SCALES = 1 << 24  # bytes of scales that may be read: per-group scales of a large weight
QUANTISED = frozenset({D.FLOAT8E4M3FN, D.INT8, D.INT4, D.FLOAT4E2M1})
FLOATS8 = frozenset({D.FLOAT8E4M3FN})
TWO = ("QuantizeLinear", "DequantizeLinear")


def _signs(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(*TWO):
        scale = constant(input_of(node, 1), SCALES)
        if scale is None or not scale.size:
            continue
        bad = scale[~(scale > 0)]  # NaN too
        if bad.size:
            yield Spot(
                label(node), f"{bad.size} of {scale.size} scales, the first is {bad.flat[0]:g}"
            )


def _infinite(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(*TWO):
        scale = constant(input_of(node, 1), SCALES)
        if scale is not None and bool(np.isposinf(scale).any()):
            yield Spot(label(node), "a scale is infinite")


def _dims(value: ir.Value | None) -> list[int | None] | None:
    tensor = tensor_of(value)
    return [int(d) for d in tensor.shape.numpy()] if tensor is not None else sizes(value)


def _shapes(scene: Scene) -> Iterator[Spot]:
    """ONNX: no scale axis is one for the whole tensor; one axis has the length of `axis`; more are blocks along it."""
    for node in scene.of(*TWO):
        x, scale = _dims(input_of(node, 0)), _dims(input_of(node, 1))
        if x is None or scale is None or scale in ([], [1]):
            continue
        axis = integer(node, "axis", 1)
        if not -len(x) <= axis < len(x):
            yield Spot(label(node), f"axis {axis} of a tensor with {len(x)} axes")
        elif len(scale) == 1:
            if None not in (x[axis], scale[0]) and x[axis] != scale[0]:
                yield Spot(label(node), f"{scale[0]} scales for axis {axis} of size {x[axis]}")
        elif len(scale) != len(x):
            yield Spot(label(node), f"scales of shape {scale} for a tensor of shape {x}")
        else:
            for i, (size, count) in enumerate(zip(x, scale, strict=True)):
                if i != axis % len(x) and None not in (size, count) and size != count:
                    yield Spot(
                        label(node),
                        f"scales of shape {scale}, blocked along axis {i} beside axis {axis}",
                    )
                    break


def _blocks(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(*TWO):
        x, scale = _dims(input_of(node, 0)), _dims(input_of(node, 1))
        block, axis = integer(node, "block_size", 0), integer(node, "axis", 1)
        if (
            not block
            or x is None
            or scale is None
            or len(scale) != len(x)
            or not -len(x) <= axis < len(x)
        ):
            continue
        size, count = x[axis], scale[axis]
        if size is not None and count is not None and -(-size // block) != count:
            yield Spot(label(node), f"block_size {block} and {count} scales for {size} elements")


def _zero_points(floats: bool) -> Check:
    def check(scene: Scene) -> Iterator[Spot]:
        for node in scene.of(*TWO):
            tensor = tensor_of(input_of(node, 2))
            if tensor is None or (tensor.dtype in FLOATS8) != floats:
                continue
            zero = constant(input_of(node, 2), SCALES)
            if zero is not None and bool((zero != 0).any()):
                yield Spot(label(node), f"zero point {zero[zero != 0].flat[0]}")

    return check


def quantised_type(node: ir.Node) -> ir.DataType | None:
    """The narrow type of a Q or DQ node, where the graph tells."""
    if node.op_type == "DequantizeLinear":
        x = input_of(node, 0)
        return None if x is None else x.dtype
    zero = input_of(node, 2)
    if zero is not None:
        return zero.dtype
    asked = integer(node, "output_dtype", 0)
    if asked in {int(t) for t in D} and asked:
        return D(asked)
    return D.UINT8


def _types(scene: Scene) -> Iterator[Spot]:
    for node in scene.of(*TWO):
        dtype = quantised_type(node)
        if dtype is not None and dtype not in QUANTISED:
            yield Spot(label(node), f"quantised to {type_name(dtype)}")


def _scale_types(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("QuantizeLinear"):
        x, scale = input_of(node, 0), input_of(node, 1)
        held = [v.dtype for v in (x, scale) if v is not None and v.dtype is not None]
        if len(held) == 2 and held[1] != D.FLOAT and held[0] != held[1]:
            yield Spot(label(node), f"a {type_name(held[1])} scale on {type_name(held[0])} numbers")


def _dynamic(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("QuantizeLinear"):
        if tensor_of(input_of(node, 1)) is None:
            yield Spot(label(node), "its scale is computed at run time")


PARSER = "The parser refuses the node"

ROWS = (
    Row("scale.sign", "QuantizeLinear, DequantizeLinear", "a scale is zero, negative or NaN", PARSER,
        "Calibrate again: a scale is finite and above zero", _signs),
    Row("scale.infinite", "QuantizeLinear, DequantizeLinear", "a scale is infinite",
        "It builds, and every number becomes zero or NaN", "Calibrate again, without masks", _infinite, "silent"),
    Row("scale.shape", "QuantizeLinear, DequantizeLinear", "scales do not fit the tensor and its axis", PARSER,
        "Give one scale, one for each index of `axis`, or blocks along `axis`", _shapes),
    Row("scale.block", "QuantizeLinear, DequantizeLinear", "block_size does not fit the number of scales",
        "It builds: TensorRT takes the blocks from the shape of the scales and ignores block_size", "Correct block_size",
        _blocks, "silent"),
    Row("scale.type", "QuantizeLinear", "a 16-bit scale on numbers of another type", "The build fails: types differ",
        "Give the scale in fp32 or the type of the numbers", _scale_types),
    Row("scale.dynamic", "QuantizeLinear", "its scale is no constant",
        "It builds, and the product runs in the wide type: the quantisation costs time and gains none",
        "Calibrate a constant scale", _dynamic, "silent"),
    Row("zero-point.integer", "QuantizeLinear, DequantizeLinear", "an integer zero point is not zero", PARSER,
        "Quantise symmetrically", _zero_points(floats=False)),
    Row("zero-point.float", "QuantizeLinear, DequantizeLinear", "an fp8 zero point is not zero",
        "It builds, and the zero point is ignored", "Quantise symmetrically", _zero_points(floats=True), "silent"),
    Row("quantize.type", "QuantizeLinear, DequantizeLinear", "the narrow type is none of fp8_e4m3, int8, int4, fp4", PARSER,
        "Quantise to fp8_e4m3 or int8", _types),
)  # fmt: skip
