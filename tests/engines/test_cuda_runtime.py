"""The real CUDA behind sessions: its names and arguments against cuda-python, and the order of its calls."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeCuda

from blockforge.core.errors import UnavailableError
from blockforge.engines import cuda_device
from blockforge.engines.cuda.interface import Cuda
from blockforge.engines.cuda.runtime import CudaRuntime
from blockforge.engines.cuda_device import CudaDevice
from blockforge.engines.gpu import gpus
from blockforge.validate.latency.cuda_timer import CudaTimer

ARRAY = np.zeros(4, np.float32)
METHODS = [name for name in vars(Cuda) if not name.startswith("_")]
# One call of every method, with handles as plain numbers.
CALLS = {
    "malloc": (16,),
    "free": (4096,),
    "upload": (4096, ARRAY, 7),
    "download": (ARRAY, 4096, 7),
    "create_stream": (),
    "destroy_stream": (7,),
    "synchronize": (7,),
    "record": (7,),
    "wait": (7, 9),
    "has_happened": (9,),
    "wait_for": (9,),
    "destroy_event": (9,),
    "is_capturing": (7,),
    "begin_capture": (7,),
    "end_capture": (7,),
    "launch": (5, 7),
    "destroy_graph": (5,),
}
# What the calls above do not reach, since the one before fails without a driver.
BEHIND = {
    "cudaSetDevice": (0,),
    "cudaFree": (4096,),
    "cudaEventRecord": (9, 7),
    "cudaGraphInstantiate": (5, 0),
    "cudaGraphDestroy": (5,),
}


@pytest.mark.parametrize("name", METHODS)
def test_both_implementations_have_the_interface(name):
    asked = list(inspect.signature(getattr(Cuda, name)).parameters)
    for kind in (CudaRuntime, FakeCuda):
        assert list(inspect.signature(getattr(kind, name)).parameters) == asked
    assert name in CALLS or name in ("current", "abandon_capture")


@pytest.fixture
def bindings():
    """cuda-python's runtime, on a machine without a driver: arguments are converted, then the call fails."""
    reason = "cuda-python (extra gpu) is not installed"
    module = pytest.importorskip("cuda.bindings.runtime", reason=reason)
    if gpus():
        pytest.skip("with a driver these handles would be used")
    return module


def test_every_call_fits_cuda_python(bindings):
    runtime = CudaRuntime(0)
    for name, arguments in CALLS.items():
        with pytest.raises(UnavailableError) as error:
            getattr(runtime, name)(*arguments)
        assert "InsufficientDriver (35)" in error.value.found or "NoDevice" in error.value.found
    with pytest.raises(UnavailableError, match="cudaGetDevice"), runtime.current():
        pass
    runtime.abandon_capture(7)
    for name, arguments in BEHIND.items():
        with pytest.raises(UnavailableError, match=name):
            cuda_device.call_cuda(bindings, name, *arguments)


def test_what_fits_no_argument_is_noticed(bindings):
    """The near miss: cuda-python refuses a wrong count, a wrong type and a wrong name before it asks the driver."""
    for name, arguments in (
        ("cudaStreamWaitEvent", (7, 9)),
        ("cudaStreamSynchronize", ("seven",)),
        ("cudaStreamBeginCapture", (7, "local")),
        ("cudaGraphsLaunch", (5, 7)),
    ):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            cuda_device.call_cuda(bindings, name, *arguments)


def test_the_plain_device_and_the_timer_fit_too(bindings):
    timer = object.__new__(CudaTimer)
    timer._cuda, timer.stream = bindings, 7
    calls = {
        "allocate": (16,),
        "free": (4096,),
        "upload": (4096, ARRAY),
        "download": (ARRAY, 4096),
        "synchronize": (),
        "close": (),
        "mark": (),
        "elapsed": (9, 9),
        "capture": (lambda: None,),
        "replay": (5,),
        "drop": (5,),
    }
    for name, arguments in calls.items():
        with pytest.raises(UnavailableError, match=r"cuda[A-Z]"):
            getattr(timer, name)(*arguments)
    with pytest.raises(UnavailableError, match="cudaStreamCreate"):
        CudaDevice()


class Recorded:
    """cuda-python as a list of calls. answers: name -> (status, values...) where it is not success and 40."""

    cudaStreamCaptureMode = SimpleNamespace(  # noqa: N815
        cudaStreamCaptureModeThreadLocal="local", cudaStreamCaptureModeRelaxed="relaxed"
    )
    cudaEventDisableTiming = 2  # noqa: N815

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name.removeprefix("cuda"), *arguments))
            return self.answers.get(name, (status(0), 40))

        return call


def status(number):
    class Status(int):
        name = "cudaErrorOf"

    return Status(number)


def runtime_over(monkeypatch, **answers):
    recorded = Recorded(**answers)
    monkeypatch.setattr("blockforge.engines.cuda.runtime.load_cuda", lambda asked: recorded)
    return CudaRuntime(1), recorded.calls


def test_the_callers_device_is_restored(monkeypatch):
    runtime, calls = runtime_over(monkeypatch, cudaGetDevice=(status(0), 0))
    with pytest.raises(KeyError), runtime.current():
        raise KeyError
    assert calls == [("GetDevice",), ("SetDevice", 1), ("SetDevice", 0)]
    runtime, calls = runtime_over(monkeypatch, cudaGetDevice=(status(0), 1))
    with runtime.current():
        pass
    assert calls == [("GetDevice",)]


def test_a_free_does_not_end_a_capture_of_its_thread(monkeypatch):
    runtime, calls = runtime_over(monkeypatch, cudaFree=(status(1),))
    with pytest.raises(UnavailableError, match=r"cudaFree: cudaErrorOf \(1\)"):
        runtime.free(8)
    exchange = "ThreadExchangeStreamCaptureMode"
    assert calls == [(exchange, "relaxed"), ("Free", 8), (exchange, 40)]


@pytest.mark.parametrize("instantiates", [True, False])
def test_the_template_of_a_graph_is_always_destroyed(monkeypatch, instantiates):
    answers = {} if instantiates else {"cudaGraphInstantiate": (status(2), None)}
    runtime, calls = runtime_over(monkeypatch, cudaStreamEndCapture=(status(0), 30), **answers)
    if instantiates:
        assert runtime.end_capture(7) == 40
    else:
        with pytest.raises(UnavailableError):
            runtime.end_capture(7)
    assert calls == [("StreamEndCapture", 7), ("GraphInstantiate", 30, 0), ("GraphDestroy", 30)]


def test_an_event_that_cannot_be_recorded_is_destroyed(monkeypatch):
    runtime, calls = runtime_over(monkeypatch, cudaEventRecord=(status(4),))
    with pytest.raises(UnavailableError):
        runtime.record(7)
    assert calls == [("EventCreateWithFlags", 2), ("EventRecord", 40, 7), ("EventDestroy", 40)]


@pytest.mark.parametrize(("answer", "result"), [(0, True), (600, False)])
def test_not_ready_is_no_fault(monkeypatch, answer, result):
    runtime, _ = runtime_over(monkeypatch, cudaEventQuery=(status(answer),))
    assert runtime.has_happened(9) is result


def test_an_event_in_error_is_one(monkeypatch):
    runtime, _ = runtime_over(monkeypatch, cudaEventQuery=(status(700),))
    with pytest.raises(UnavailableError, match="cudaEventQuery"):
        runtime.has_happened(9)


def test_without_cuda_python_it_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnavailableError, match=r"cuda-python.*blockforge\[gpu\]"):
        CudaRuntime(0)
