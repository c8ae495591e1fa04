"""Sessions of real engines on a real GPU: numbers against float64, graphs, streams, torch, refit. Needs an NVIDIA GPU."""

import threading

import numpy as np
import pytest
from session_rig import BIAS, LARGE, SMALL, WEIGHT, check, expected, linear, numbers

from blockforge.core.errors import ArtefactError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import BuildOptions, CompileRequest, compile_engine
from blockforge.engines.cuda.runtime import CudaRuntime
from blockforge.engines.gpu import gpus
from blockforge.engines.session import Session, SessionOptions
from blockforge.engines.target import DEVICES, Target
from blockforge.engines.tensorrt_api import is_installed

FOUND = gpus()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not FOUND, reason="no NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def cuda():
    pytest.importorskip("cuda.bindings", reason="cuda-python (extra gpu) is not installed")
    return CudaRuntime(0)


@pytest.fixture(scope="module")
def target():
    """A product that is installed and runs on this GPU."""
    for runtime in ("tensorrt", "tensorrt-rtx"):
        if is_installed(runtime) and FOUND[0].architecture in DEVICES[runtime]:
            return Target(runtime, FOUND[0].architecture)
    pytest.skip(f"no TensorRT for {FOUND[0].architecture} is installed here")


@pytest.fixture(scope="module")
def plan(target, cuda, tmp_path_factory):
    """The rig's graph with two profiles, built with refit."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "model.onnx").write_bytes(linear().SerializeToString())
    first, second = ({n: ShapeRange(*s) for n, s in p.items()} for p in (SMALL, LARGE))
    request = CompileRequest(
        folder / "model.onnx",
        target,
        first,
        folder,
        options=BuildOptions(refit=True),
        more_profiles=(second,),
    )
    record = compile_engine(request)
    return folder / record.path


def opened(plan, **options):
    return Session(plan, verify=False, options=SessionOptions(**options))


def test_memory_streams_and_events(cuda):
    array = np.arange(1 << 20, dtype=np.float32)
    back = np.zeros_like(array)
    with cuda.current():
        stream, other, address = (
            cuda.create_stream(),
            cuda.create_stream(),
            cuda.malloc(array.nbytes),
        )
        cuda.upload(address, array, stream)
        event = cuda.record(stream)
        cuda.wait(other, event)
        cuda.download(back, address, other)
        cuda.synchronize(other)
        assert cuda.has_happened(event) and not cuda.is_capturing(stream)
        cuda.destroy_event(event)
        cuda.free(address)
        cuda.destroy_stream(stream)
        cuda.destroy_stream(other)
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("graphs", [0, 2])
def test_numbers_through_both_profiles(plan, graphs):
    with opened(plan, cuda_graphs=graphs) as session:
        assert len(session.profiles) == 2
        for turn in range(4):
            for shape in ((1, 1), (2, 4), (8, 16)):
                x = numbers(*shape, seed=turn)
                check(session.run({"x": x}), x)
        if graphs:
            assert session.counts["replayed"] > 0 and session.counts["evicted"] > 0


def test_threads(plan):
    wrong = []

    def work(number):
        try:
            for turn in range(10):
                x = numbers(1 + number, 1 + turn, seed=number)
                check(session.run({"x": x}), x)
        except BaseException as error:
            wrong.append(error)

    with opened(plan, contexts=3, cuda_graphs=1) as session:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not wrong


def test_results_that_stay_on_the_gpu(plan):
    x = numbers(2, 3)
    with opened(plan) as session:
        made = [session.enqueue({"x": x}) for _ in range(3)]
        for results in made:
            check(results, x)


def test_torch_in_and_out(plan):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    stream = torch.cuda.Stream()
    with opened(plan) as session:
        with torch.cuda.stream(stream):
            x = torch.tensor(numbers(2, 3)).cuda() * 1
            y = torch.empty(2, 3, 3, device="cuda")
            results = session.enqueue({"x": x}, outputs={"y": y}, stream=stream)
            z = torch.from_dlpack(results["z"]) + 0
        stream.synchronize()
    truth = expected(numbers(2, 3))
    np.testing.assert_array_equal(y.cpu().numpy(), truth["y"])
    np.testing.assert_array_equal(z.cpu().numpy(), truth["z"])


def test_refit(plan):
    x = numbers(2, 3)
    with opened(plan, cuda_graphs=1) as session:
        for _ in range(3):
            check(session.run({"x": x}), x)
        session.refit(
            {"pair_w": (2 * WEIGHT).astype(np.float32), "pair_b": BIAS.astype(np.float32)}
        )
        y = session.run({"x": x})["y"]
    np.testing.assert_array_equal(y, expected(x, 2 * WEIGHT)["y"])


def test_layers_are_timed(plan):
    heard = []
    with opened(plan) as session:
        session.run({"x": numbers(2, 3)}, on_layer=lambda *each: heard.append(each))
    assert heard and all(seconds >= 0 for _, seconds in heard)


def test_a_damaged_plan_is_refused(plan, tmp_path):
    bad = tmp_path / "bad.plan"
    bad.write_bytes(b"?" * 4096)
    with pytest.raises(ArtefactError):
        Session(bad, target=str(Target(*_built_for(plan))), verify=False)


def _built_for(plan):
    runtime, _, device = plan.stem.rpartition("-")
    return runtime, device
