"""The TensorRT runner over a stand-in device: every address that is allocated is freed, whatever happens.

This shows order and lifetimes only. No engine has run: that needs a GPU.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from blockforge.core.errors import ArtefactError, BuildError, UsageError
from blockforge.engines import tensorrt_session
from blockforge.engines.tensorrt_session import TensorRTRunner


class FakeDevice:
    """Memory as a dict; counts what is live and refuses use after free."""

    stream = 7

    def __init__(self):
        self.memory, self.next, self.closed = {}, 1000, False

    def allocate(self, nbytes):
        self.next += 1
        self.memory[self.next] = bytes(nbytes)
        return self.next

    def free(self, address):
        del self.memory[address]

    def upload(self, address, array):
        assert address in self.memory
        self.memory[address] = array.tobytes()

    def download(self, array, address):
        array[...] = np.frombuffer(self.memory[address], array.dtype).reshape(array.shape)

    def synchronize(self):
        pass

    def close(self):
        assert not self.memory and not self.closed
        self.closed = True


class FakeContext:
    """y = 2 x in fp16; refuses more than four rows and fails on NaN."""

    def __init__(self, device, words):
        self.device, self.words, self.addresses = device, words, {}

    def set_input_shape(self, name, shape):
        self.shape = shape
        if shape[0] > 4:
            self.words("ERROR", "shape out of\nrange")
        return shape[0] <= 4

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def execute_async_v3(self, stream):
        assert stream == 7
        x = np.frombuffer(self.device.memory[self.addresses["x"]], np.float16)
        if np.isnan(x).any():
            self.words("ERROR", "launch failed")
            return False
        self.device.memory[self.addresses["y"]] = (2 * x).tobytes()
        return True


@pytest.fixture
def runner(tmp_path, monkeypatch):
    device = FakeDevice()
    sinks = []
    monkeypatch.setattr(tensorrt_session, "create_logger", lambda api, sink: sinks.append(sink))
    engine = SimpleNamespace(
        create_execution_context=lambda: FakeContext(device, sinks[0]),
        num_io_tensors=2,
        num_optimization_profiles=1,
        get_tensor_name=lambda index: "xy"[index],
        get_tensor_mode=lambda name: {"x": "in", "y": "out"}[name],
        get_tensor_dtype=lambda name: SimpleNamespace(name="HALF"),
    )

    def deserialize(data):
        if data == b"plan":
            return engine
        sinks[0]("ERROR", "Version tag does not match")
        return None

    trt = SimpleNamespace(
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=deserialize),
        TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
    )
    api = SimpleNamespace(trt=trt, version="tensorrt-rtx test")

    def open_(data=b"plan"):
        (tmp_path / "x.plan").write_bytes(data)
        return TensorRTRunner(tmp_path / "x.plan", "tensorrt-rtx", api=api, device=device)

    return SimpleNamespace(open=open_, device=device)


def test_run_uploads_computes_downloads_and_frees(runner):
    session = runner.open()
    x = np.arange(6, dtype=np.float16).reshape(3, 2)
    for _ in range(2):
        outputs = session.run({"x": x})
        assert outputs["y"].dtype == np.float16
        np.testing.assert_array_equal(outputs["y"], 2 * x)
        assert not runner.device.memory
    session.close()
    assert runner.device.closed


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((5, 2), np.float16), "shape out of range"),
        (np.full((1, 2), np.nan, np.float16), "launch failed"),
    ],
)
def test_a_refusal_frees_and_quotes(runner, x, words):
    session = runner.open()
    with pytest.raises(BuildError, match=words):
        session.run({"x": x})
    assert not runner.device.memory
    good = np.ones((1, 2), np.float16)
    np.testing.assert_array_equal(session.run({"x": good})["y"], 2 * good)


def test_it_runs_with_the_profile_that_fits(runner):
    """Rows 1 to 4 of two columns, or up to 64 of one; x -> the profile that was active at the launch."""
    sizes = [((1, 2), (2, 2), (4, 2)), ((1, 1), (8, 1), (64, 1))]
    session, launched = runner.open(), []
    engine, context = session._engine, session._context
    engine.num_optimization_profiles = 2
    engine.get_tensor_shape = lambda name: (-1, -1)
    engine.get_tensor_profile_shape = lambda name, index: sizes[index]
    context.active_optimization_profile = 0

    def switch(index, stream):
        assert stream == 7
        context.active_optimization_profile = index

    def set_shape(name, shape):
        low, _, high = sizes[context.active_optimization_profile]
        context.shape = shape
        return all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True))

    context.set_optimization_profile_async = switch
    context.set_input_shape = set_shape
    for shape in ((2, 2), (3, 1), (64, 1), (4, 2)):
        x = np.ones(shape, np.float16)
        np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x)
        launched.append(context.active_optimization_profile)
    assert launched == [0, 1, 1, 0]
    with pytest.raises(UsageError, match=r"none of the 2 profiles.*profile 0.*profile 1"):
        session.run({"x": np.ones((5, 2), np.float16)})
    assert not runner.device.memory


def test_a_plan_of_another_version_is_an_artefact_error(runner):
    with pytest.raises(ArtefactError, match="Version tag does not match"):
        runner.open(b"other")
    assert runner.device.closed
