"""A channel that FP16 would hold as subnormals, and that its reader makes count, is held larger by itself."""

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from blockforge.core.dtypes import DType
from blockforge.export.precision import PrecisionOptions

from .chains import CHAINS, CHANNEL, model
from .runs import exact, in_onnxruntime, relative, repaired, typed
from .test_lift import X
from .test_migrate_near import NEAR, near


@pytest.fixture(scope="module", params=CHAINS)
def chain(request):
    return CHAINS[request.param]


def test_a_channel_that_is_made_faint_and_read_loud_grows_alone(chain):
    """The weight's own energy does not show it: 1e-7 of its numbers, which the reader takes 1e7 times."""
    options = PrecisionOptions(DType.FP16, fuse=chain.fuse)
    proto, plain = model(chain, 1e-7), model(chain)
    before, after, report = repaired(proto, X, options)
    assert [n.op_type for n in before.graph] == [n.op_type for n in after.graph]
    for old, new in zip(in_onnxruntime(before, X), in_onnxruntime(after, X), strict=True):
        assert torch.equal(old, new)
    (row,) = report.migrated
    assert row.channels == 1 and row.exponents[0] == row.exponents[1] < 0
    _, report, run = typed(proto, X, options)
    assert run.overflow == () and report.islands == [] and report.streams == []
    assert report.inserted == {} and report.scaled == {}
    _, _, without = typed(plain, X, options)
    noise = relative(without.outputs["y"], exact(plain, X)["y"])
    assert relative(run.outputs["y"], exact(proto, X)["y"]) < 1.25 * noise


@pytest.mark.parametrize("size", [1e-6, 1e-8, 1e-12])
def test_a_faint_channel_that_is_read_as_the_others_is_left(size):
    proto = model(CHAINS["linear with bias"])
    for tensor in proto.graph.initializer:
        if tensor.name.startswith("up."):
            numbers = numpy_helper.to_array(tensor).copy()
            numbers[..., [1, 4, 5]] *= np.float32(size)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    _, report, _ = typed(proto, X)
    assert report.migrated == [] and report.scaled == {} and report.islands == []


@pytest.mark.parametrize("build", [b for b in NEAR if b.__name__ in ("a_softmax", "a_mean", "a_nonlinearity")])  # fmt: skip
def test_a_faint_channel_that_something_else_sees_is_named(build):
    proto = near(build, {"up.weight": 1e-7, "down.weight": 1e7})
    _, report, _ = typed(proto, X)
    assert report.migrated == []
    (note,) = report.notes
    assert note.startswith("up.weight: 1 channel(s) would lose") and "cannot grow" in note


def test_a_bias_that_could_not_grow_holds_its_channel():
    proto = model(CHAINS["linear with bias"], 1e-7)
    for tensor in proto.graph.initializer:
        if tensor.name == "up.bias":
            numbers = numpy_helper.to_array(tensor).copy()
            numbers[CHANNEL] = 1e4
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    _, report, run = typed(proto, X)
    assert report.migrated == [] and run.overflow == ()
