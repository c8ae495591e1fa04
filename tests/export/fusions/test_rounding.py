"""Where the graph rounds to 16 bits stays where it was, or the report says that it moved."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from .equal import fused, largest_difference
from .graphs import graph, operators

# float16 constants are spelled by their bits in ONNX text: w = 1 ... 8, eps = 1e-5, root = 1.4140625
NORM = """norm (float16[b, s, 8] x) => (float16[b, s, 8] y)
<int64[1] last = {{-1}}, float eps = {{0.00001}}, float16[8] w = {{15360, 16384, 16896, 17408, 17664, 17920, 18176, 18432}}> {{
    wide = Cast<to = 1>(x)
    square = Mul(wide, wide)
    mean = ReduceMean(square, last)
    shifted = Add(mean, eps)
    root = Sqrt(shifted)
    unit = Div(wide, root)
    {end}
}}"""
BEFORE = "narrow = Cast<to = 10>(unit)\n y = Mul(w, narrow)"
AFTER = "wide_w = Cast<to = 1>(w)\n scaled = Mul(unit, wide_w)\n y = Cast<to = 10>(scaled)"


def rounded(model, x):
    """What the ONNX specification says, every value rounded to its type: norms by their definition in the schema.

    onnx.reference has a kernel of its own for RMSNormalization, which ignores stash_type.
    """
    model = onnx.ModelProto.FromString(model.SerializeToString())
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type for v in (*inferred.input, *inferred.value_info)}
    for stored in model.graph.initializer:
        types[stored.name] = onnx.helper.make_tensor_type_proto(stored.data_type, stored.dims)
    for node in model.graph.node:
        if node.op_type == "RMSNormalization":
            schema = onnx.defs.get_schema(node.op_type, 23)
            given = [types[i].SerializeToString() for i in node.input]
            text = schema.get_context_dependent_function(node.SerializeToString(), given)
            body = onnx.FunctionProto.FromString(text)
            node.domain = body.domain = "defined"
            model.functions.append(body)
            model.opset_import.append(onnx.helper.make_opsetid("defined", 1))
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


@pytest.mark.parametrize(
    ("end", "expected"),
    [(BEFORE, ["RMSNormalization"]), (AFTER, ["Cast", "Cast", "RMSNormalization", "Cast"])],
    ids=["cast before the scale", "cast after the scale"],
)
def test_the_rounding_point_is_kept(end, expected):
    model = graph(NORM.format(end=end), opset=23)
    after, report = fused(model)
    assert operators(after) == expected
    assert not report.fused[0].notes
    x = (np.random.default_rng(0).normal(size=(4, 50, 8)) * 300).astype(
        np.float16
    )  # squares overflow fp16
    np.testing.assert_array_equal(rounded(after, x), rounded(model, x))


def test_statistics_in_16_bits_are_reported():
    model = graph(
        """norm (float16[b, s, 8] x) => (float16[b, s, 8] y)
        <int64[1] last = {-1}, float16 eps = {168}> {
            square = Mul(x, x)
            mean = ReduceMean(square, last)
            shifted = Add(mean, eps)
            root = Sqrt(shifted)
            y = Div(x, root)
        }""",
        opset=23,
    )
    after, report = fused(model)
    assert operators(after) == ["RMSNormalization"]
    assert "statistics were computed in float16" in report.fused[0].notes[0]
    assert largest_difference(model, after) < 1e-6


def test_constants_rounded_to_16_bits_stay_as_they_are():
    text = """gelu (float16[b, s, 8] x) => (float16[b, s, 8] y)
    <float16 root = {15784}, float16 one = {15360}, float16 half = {14336}> {
        inner = Div(x, root)
        erf = Erf(inner)
        shifted = Add(erf, one)
        scaled = Mul(x, half)
        y = Mul(scaled, shifted)
    }"""
    model = graph(text, opset=23)
    after, report = fused(model)
    assert operators(after) == ["blockforge::Gelu"]
    assert "rounded to float16" in report.fused[0].notes[0]
    assert largest_difference(model, after) == 0
