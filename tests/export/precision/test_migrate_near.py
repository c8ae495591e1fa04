"""Where channels may have no exponent of their own: what mixes them, sees their size, or shares their weights.

The pairs of `chains` with one thing more; each is migrated without it.
"""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions

from .chains import CHANNEL, direct, ints, packed_attention, spread, swiglu
from .decoders import INNER, H, Shape, Writer, model_of
from .runs import FP16, UNIT, exact, in_onnxruntime, relative, repaired, typed
from .test_migrate import HUGE, LARGE, X


def held(w, other, size=INNER):
    """The linears of `direct`; what `other` makes of the hidden value is added to the result."""
    up = w.linear(spread(w), "up", H, size)
    return w.op("Add", w.linear(up, "down", size, H), other(w, up))


def mean(w, x):
    return w.op("ReduceMean", x, ints(w, -1))


def a_sum_of_two_values(w):
    up = w.linear(spread(w), "up", H, H)
    return w.linear(w.op("Add", up, w.linear("x", "other", H, H)), "down", H, H)


def a_softmax(w):
    return held(w, lambda w, up: mean(w, w.op("Softmax", up, axis=-1)))


def a_nonlinearity(w):
    return held(w, lambda w, up: mean(w, w.op("Gelu", up)))


def a_mean(w):
    return held(w, mean)


def a_largest(w):
    return held(w, lambda w, up: w.op("ReduceMax", up, ints(w, -1)))


def a_norm(w):
    return held(w, lambda w, up: w.norm(up, "normed"), H)


def a_tied_reader(w):
    up = w.linear(spread(w), "up", H, INNER)
    again = w.op("MatMul", w.op("Gelu", w.linear("x", "other", H, INNER)), "down.weight")
    return w.op("Add", w.linear(up, "down", INNER, H), again)


def a_tied_writer(w):
    up = w.linear(spread(w), "up", H, INNER)
    again = mean(w, w.op("Tanh", w.op("MatMul", "x", "up.weight")))
    return w.op("Add", w.linear(up, "down", INNER, H), again)


def a_tied_bias(w):
    x = spread(w)
    up = w.op("MatMul", x, w.weight("up.weight", H, INNER))
    up = w.op("Add", up, w.weight("up.bias", INNER))
    y = w.op("MatMul", up, w.weight("down.weight", INNER, H))
    return w.op("Add", y, mean(w, w.op("Tanh", "up.bias")))


def channels_and_positions_mixed(w):
    up = w.op("Reshape", w.linear(spread(w), "up", H, INNER), ints(w, 0, 6 * INNER))
    down = w.op("Reshape", w.linear(up, "down", 6 * INNER, H), ints(w, -1, 1, H))
    return w.op("Add", "x", down)


def channels_turned_over(w):
    """The linear sums over positions."""
    up = w.op("Transpose", w.linear(spread(w), "up", H, INNER), perm=[0, 2, 1])
    return w.op("Add", "x", w.op("ReduceMean", w.linear(up, "down", 6, H), ints(w, 1)))


def a_product(w, other=lambda w, product: None):
    """Of two factors the second carries the exponents of the product."""
    x = spread(w)
    product = w.op("Mul", *(w.linear(x, name, H, INNER) for name in ("first_factor", "up")))
    y, more = w.linear(product, "down", INNER, H), other(w, product)
    return w.op("Add", y, more) if more else y


def a_mean_of_a_product(w):
    return a_product(w, mean)


def channels_summed_over(w):
    """A product of two values over the channels of one, whose result has as many rows."""
    x = spread(w)
    rows, columns, up = (w.linear(x, name, H, INNER) for name in ("rows", "columns", "up"))
    square = w.op("MatMul", w.op("Transpose", rows, perm=[0, 2, 1]), columns)
    product = w.op("MatMul", square, w.op("Transpose", up, perm=[0, 2, 1]))
    return w.linear(w.op("Transpose", product, perm=[0, 2, 1]), "down", INNER, H)


def a_rotation(w):
    x = spread(w)
    q, k, v = (w.linear(x, name, H, H) for name in ("up", "k", "v"))
    angles = [w.weight(f"{name}.angles", 6, 4) for name in ("cos", "sin")]
    q, k = (w.op("RotaryEmbedding", t, *angles, ids(w), num_heads=2) for t in (q, k))
    y = w.op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2)
    return w.linear(y, "down", H, H)


def ids(w):
    rows = w.op("Shape", "x", start=0, end=1)
    whole = w.op("Concat", rows, ints(w, 6), axis=0)
    return w.op("Expand", w.number(np.arange(6)[None], np.int64), whole)


def scores(w):
    x = spread(w)
    q, k, v = (w.linear(x, name, H, H) for name in ("q", "up", "v"))
    return w.linear(w.op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2), "down", H, H)


def a_number_for_each_position(w):
    up = w.linear(spread(w), "up", H, INNER)
    up = w.op("Add", up, w.weight("positions", 6, 1))
    return w.linear(up, "down", INNER, H)


def an_output(w):
    up = w.op("Identity", w.linear(spread(w), "up", H, H), name="second")
    return w.linear(up, "down", H, H)


def a_branch(w):
    """An inner graph reads the value."""
    up = w.linear(spread(w), "up", H, H)
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    bodies = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, [up], ["inner"])], name, [], [result])
        for name, op in (("then", "Tanh"), ("else", "Sigmoid"))
    }  # fmt: skip
    chosen = w.op("If", w.number(True, np.bool_), **bodies)
    return w.op("Add", w.linear(up, "down", H, H), chosen)


def near(build, factors, outputs=()) -> onnx.ModelProto:
    """The graph with a channel of each weight in `factors` as many times as large."""
    w = Writer(Shape())
    y = w.op("Identity", build(w), name="y")
    for index, tensor in enumerate(w.weights):
        if tensor.name in factors:
            numbers = numpy_helper.to_array(tensor).copy()
            axis = 0 if tensor.name == "down.weight" else -1
            np.moveaxis(numbers, axis, 0)[CHANNEL] *= np.float32(factors[tensor.name])
            w.weights[index] = numpy_helper.from_array(numbers, tensor.name)
    x = ("x", TensorProto.FLOAT, ["batch", 6, H])
    return model_of(w, [x], [(y, H), *outputs], 6)


PLANTED = {"up.weight": HUGE, "down.weight": 1 / HUGE}
NEAR = [
    *(a_sum_of_two_values, a_softmax, a_nonlinearity, a_mean, a_largest, a_norm, a_branch),
    *(a_tied_reader, a_tied_writer, a_tied_bias, a_rotation, scores, a_mean_of_a_product),
    *(channels_and_positions_mixed, channels_turned_over, channels_summed_over),
    a_number_for_each_position,
]


@pytest.mark.parametrize("build", NEAR)
def test_a_near_miss_is_left_alone(build):
    assert repaired_otherwise(near(build, PLANTED)) == set()


def test_a_graph_output_is_left_alone():
    assert repaired_otherwise(near(an_output, PLANTED, [("second", H)])) == set()


def test_a_weight_without_room_is_left_alone():
    """down's channel passes the range 2^15 times as large."""
    factors = {"up.weight": LARGE, "down.weight": 1e3}
    assert repaired_otherwise(near(direct, factors)) == set()


def test_one_exponent_is_kept_where_it_is_enough():
    """Four bits for all: no channel and no weight falls among the subnormals."""
    proto = near(direct, {"up.weight": 1e6, "down.weight": 1e-2})
    assert repaired_otherwise(proto) == set()
    _, report, run = typed(proto, X)
    assert [s.exponent for s in report.streams] == [4] and report.islands == []
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < 4 * UNIT[DType.FP16]


@pytest.mark.parametrize("fuse", [True, False])
def test_a_gate_is_held_and_its_product_is_carried_by_the_other_side(fuse):
    """swish(gate) * up: the gate at 1e6 stays as it is; what is beyond the range behind it, up takes."""
    proto = near(swiglu, {"gate.weight": LARGE, "down.weight": 1 / LARGE})
    found = repaired_otherwise(proto, PrecisionOptions(DType.FP16, fuse=fuse))
    assert found == {"up.weight", "down.weight"}


def test_of_two_factors_the_first_is_held():
    """What is beyond the range in the product, the second takes; the first is repaired by one exponent for all."""
    proto = near(a_product, {"first_factor.weight": HUGE, "down.weight": 1 / HUGE})
    assert repaired_otherwise(proto) == {"up.weight", "down.weight"}
    _, _, report = repaired(near(a_product, PLANTED), X)
    assert set(report.by_channel) == {"up.weight", "down.weight"} and not report.streams


def test_channels_that_one_exponent_would_push_down_are_reason_enough():
    """12 bits for all would leave numbers of 0.2 as 5e-5; the weight that reads the outlier is an ordinary one."""
    proto = near(direct, {"up.weight": 1e9, "down.weight": 1e-4})
    _, report, run = typed(proto, X)
    assert set(report.by_channel) == {"up.weight", "down.weight"} and report.streams == []
    assert run.overflow == () and report.islands == []


def test_in_a_packed_product_the_values_alone_take_part():
    """q, k and v in one: a channel of v has an exponent (chains), the same channel of q has none."""
    proto = near(packed_attention, {"qkv.weight": HUGE})
    assert repaired_otherwise(proto) == set()


def repaired_otherwise(proto: onnx.ModelProto, options: PrecisionOptions = FP16) -> set[str]:
    """The weights with exponents by channel, where the graph computes the same and nothing overflows."""
    before, after, report = repaired(proto, X, options)
    for old, new in zip(in_onnxruntime(before, X), in_onnxruntime(after, X), strict=True):
        assert torch.equal(old, new)
    _, report, run = typed(proto, X, options)
    assert report.streams or report.islands, "something passes the range"
    assert run.overflow == ()
    return set(report.by_channel)
