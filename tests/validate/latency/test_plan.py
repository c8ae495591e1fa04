"""An engine under the clock, over a stand-in device: order, lifetimes and which clock. No engine has run: that needs a GPU."""

from types import SimpleNamespace

import pytest
import torch

from blockforge.core.errors import BuildError, UnavailableError
from blockforge.engines import tensorrt_session
from blockforge.engines.gpu import gpus
from blockforge.validate.latency.cuda_timer import CudaTimer
from blockforge.validate.latency.plan import PlanWorkload


class FakeDevice:
    """Memory, events and graphs as numbers; counts what is live. A queue of names stands for the stream."""

    stream = 7

    def __init__(self):
        self.live, self.next, self.queue, self.graphs, self.closed = set(), 1000, [], {}, False
        self.capturing = None

    def _new(self):
        self.next += 1
        self.live.add(self.next)
        return self.next

    def allocate(self, nbytes):
        self.size = nbytes
        return self._new()

    def free(self, address):
        self.live.remove(address)

    def upload(self, address, array):
        assert address in self.live and self.capturing is None
        self.queue.append("upload")

    def synchronize(self):
        assert self.capturing is None, "synchronising breaks a capture"

    def mark(self):
        self.queue.append("mark")
        return self._new()

    def elapsed(self, start, end):
        self.live -= {start, end}
        return 0.002

    def capture(self, launch):
        self.capturing = []
        launch()
        graph, (work, self.capturing) = self._new(), (self.capturing, None)
        self.graphs[graph] = work
        return graph

    def replay(self, graph):
        assert graph in self.live
        self.queue.append("replay")

    def drop(self, graph):
        self.live.remove(graph)

    def close(self):
        assert not self.live and not self.closed
        self.closed = True


class FakeContext:
    """Takes up to four rows of four fp16 numbers."""

    def __init__(self, device, hear):
        self.device, self.hear = device, hear

    def set_input_shape(self, name, shape):
        self.shape = shape
        if shape[0] > 4:
            self.hear("ERROR", "shape out of range")
        return shape[0] <= 4

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address):
        assert address in self.device.live

    def execute_async_v3(self, stream):
        assert stream == 7
        work = self.device.queue if self.device.capturing is None else self.device.capturing
        work.append("launch")
        return True


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """workload(graph) -> (the workload, its device)."""
    sinks = []
    monkeypatch.setattr(tensorrt_session, "create_logger", lambda api, sink: sinks.append(sink))
    plan = tmp_path / "x.plan"
    plan.write_bytes(b"plan")

    def workload(graph):
        device = FakeDevice()
        engine = SimpleNamespace(
            num_io_tensors=2,
            num_optimization_profiles=1,
            get_tensor_name=lambda i: "xy"[i],
            get_tensor_mode=lambda n: "in" if n == "x" else "out",
            get_tensor_dtype=lambda n: SimpleNamespace(name="HALF"),
            create_execution_context=lambda: FakeContext(device, lambda *said: sinks[-1](*said)),
        )
        trt = SimpleNamespace(
            Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda data: engine),
            TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
        )
        api = SimpleNamespace(trt=trt, version="fake 1")
        return PlanWorkload("p", plan, "tensorrt", graph=graph, api=api, device=device), device

    return workload


def rows(count):
    return {"x": torch.zeros(count, 4, dtype=torch.float16)}


def test_only_the_launch_lies_between_the_events(opened):
    workload, device = opened(graph=False)
    workload.prepare(rows(2))
    assert device.queue == ["upload"]
    assert workload.time() == 0.002
    assert device.queue == ["upload", "mark", "launch", "mark"]
    assert device.size == 2 * 4 * 2, "the output's bytes"
    workload.close()
    assert device.closed


def test_a_graph_is_captured_after_one_launch_and_replayed(opened):
    workload, device = opened(graph=True)
    workload.prepare(rows(2))
    assert device.queue == ["upload", "launch"] and list(device.graphs.values()) == [["launch"]]
    workload.time()
    assert device.queue[2:] == ["mark", "replay", "mark"]
    workload.close()
    assert device.closed


@pytest.mark.parametrize("graph", [False, True])
def test_new_inputs_free_the_old_buffers_and_graph(opened, graph):
    workload, device = opened(graph)
    for count in (1, 3, 2):
        workload.prepare(rows(count))
        workload.time()
        assert len(device.live) == 2 + graph
    workload.close()
    assert device.closed


def test_a_shape_that_tensorrt_refuses_leaks_nothing(opened):
    workload, device = opened(graph=True)
    workload.prepare(rows(1))
    with pytest.raises(BuildError, match="shape out of range"):
        workload.prepare(rows(9))
    workload.close()
    assert device.closed


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU")
def test_events_and_graphs_on_a_gpu():
    """Clearing 256 MiB takes about as long launched as replayed, and far longer than nothing."""
    device, size = CudaTimer(), 1 << 28
    address = device.allocate(size)

    def clear():
        device._call("cudaMemsetAsync", address, 0, size, device.stream)

    def seconds(work):
        work()
        start = device.mark()
        work()
        return device.elapsed(start, device.mark())

    graph = device.capture(clear)
    launched, replayed = seconds(clear), seconds(lambda: device.replay(graph))
    assert launched == pytest.approx(replayed, rel=0.5)
    assert launched > 10 * seconds(lambda: None)
    device.drop(graph)
    device.free(address)
    device.close()


@pytest.mark.skipif(bool(gpus()), reason="only where there is no GPU")
def test_without_a_gpu_the_timer_says_what_is_missing():
    with pytest.raises(UnavailableError, match=r"cuda-python|cudaStreamCreate"):
        CudaTimer()
