"""Channels that one exponent makes subnormal are named; what branches and loops give has a range as any value has."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions

from .decoders import INNER, H
from .runs import exact, relative, typed

X = {"x": torch.from_numpy(np.random.default_rng(0).standard_normal((2, 6, H)).astype(np.float32))}


def between(*operators, size=1.0):
    """Linear, `operators`, linear: channel 3 of the value between them `size` times as large as the others."""
    random = np.random.default_rng(1)
    up, down = (random.standard_normal(s).astype(np.float32) / 8 for s in ((H, INNER), (INNER, H)))
    up[:, 3] *= size
    down[3] /= size
    return graph([
        helper.make_node("MatMul", ["x", "up"], ["h"]), *operators, helper.make_node("MatMul", ["a", "down"], ["y"])
    ], {"up": up, "down": down})  # fmt: skip


def graph(nodes, constants, inner=()):
    edge = ["b", 6, H]
    made = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, edge)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, edge)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        value_info=list(inner),
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


RELU = helper.make_node("Relu", ["h"], ["a"])
SQUARED = helper.make_node(
    "Mul", ["h", "h"], ["a"]
)  # every channel by itself, but held by no law of ours


def test_channels_that_one_exponent_pushes_down_are_named():
    _, report, _ = typed(between(SQUARED, size=1e5), X)
    (note,) = [n for n in report.notes if "subnormal" in n]
    assert "BF16" in note and f"of its {INNER} channels" in note


@pytest.mark.parametrize(
    ("proto", "options"),
    [
        (between(RELU, size=1e9), PrecisionOptions(DType.FP16)),  # the channel has its own exponent
        (between(SQUARED), PrecisionOptions(DType.FP16)),  # no outlier
        (
            between(SQUARED, size=1e3),
            PrecisionOptions(DType.FP16),
        ),  # held at a size that hurts none
        (between(SQUARED, size=1e5), PrecisionOptions(DType.BF16)),  # BF16 has FP32's exponents
    ],
    ids=["migrated", "plain", "mild", "bf16"],
)
def test_no_channel_is_named_in_vain(proto, options):
    _, report, run = typed(proto, X, options)
    assert report.notes == []
    bound = 2.0**-7 if options.precision is DType.FP16 else 2.0**-4
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < bound


def branch(factor):
    """y = MatMul(If(sum(x) > -inf): x * factor, w / factor)."""

    def body(name, scale):
        node = helper.make_node("Mul", ["x", scale], [name])
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 6, H])
        return helper.make_graph([node], name, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "least"], ["c"]),
        helper.make_node("If", ["c"], ["m"], then_branch=body("t", "big"), else_branch=body("e", "one")),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]  # fmt: skip
    constants = {
        "least": np.float32(-1e30),
        "big": np.float32(factor),
        "one": np.float32(1),
        "w": (np.eye(H) / factor).astype(np.float32),
    }
    return graph(nodes, constants)


def loop(factor):
    """m = x, then three times m = m * factor; y = MatMul(m, w / factor^3)."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["m_in", "factor"], ["m_out"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m_in", TensorProto.FLOAT, ["b", 6, H]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m_out", TensorProto.FLOAT, ["b", 6, H]),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["n", "true", "x"], ["m"], body=body),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    constants = {
        "n": np.int64(3),
        "true": np.bool_(True),
        "factor": np.float32(factor),
        "w": (np.eye(H) / factor**3).astype(np.float32),
    }
    return graph(nodes, constants)


@pytest.mark.parametrize("proto", [branch(2.0**20), loop(2.0**7)], ids=["If", "Loop"])
def test_what_a_body_gives_beyond_the_range_does_not_become_infinite(proto):
    onnx.checker.check_model(proto, full_check=True)
    _, report, run = typed(proto, X)
    assert run.overflow == () and report.islands
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < 2.0**-7


@pytest.mark.parametrize("proto", [branch(4.0), loop(2.0)], ids=["If", "Loop"])
def test_what_a_body_gives_within_the_range_needs_no_island(proto):
    _, report, run = typed(proto, X)
    assert run.overflow == () and report.islands == []
