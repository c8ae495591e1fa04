"""Runs of an engine over a fake GPU that holds memory and forgives nothing: numbers, memory, profiles, faults."""

import numpy as np
import pytest
from engine_graphs import model_of
from fake_tensorrt import plan_of
from onnx import helper
from session_rig import LARGE, SMALL, ByInterface, OnGpu, Rig, check, expected, numbers

from blockforge.core.dtypes import DType, dtype_from_name
from blockforge.core.errors import BuildError, UnavailableError, UsageError
from blockforge.engines import dlpack
from blockforge.engines.session import Pointer, Session


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_run_gives_the_numbers_of_numpy(rig, kind):
    with rig.open(kind) as session:
        for shape in ((1, 1), (2, 4), (8, 16)):
            x = numbers(*shape, kind)
            results = session.run({"x": x})
            assert results["y"].dtype == dtype_from_name(kind).numpy
            check(results, x)
    rig.cuda.check_clean()


def test_runs_of_one_size_allocate_nothing(rig):
    with rig.open() as session:
        session.run({"x": numbers(8, 16)})
        before = rig.cuda.mallocs
        for seed in range(3):
            session.run({"x": numbers(2, 3, seed=seed)})
        assert rig.cuda.mallocs == before


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (3, 4), (8, 16)])
def test_the_smallest_profile_that_fits_is_taken(rig, shape):
    with rig.open(profiles=(LARGE, SMALL)) as session:
        session.run({"x": numbers(*shape)})
        (context,) = (found for ref in rig.trt.contexts if (found := ref()))
        assert context.active_optimization_profile == (1 if shape[0] <= 2 else 0)


def test_sizes_that_no_profile_holds_never_reach_tensorrt(rig):
    with rig.open() as session:
        with pytest.raises(UsageError) as error:
            session.run({"x": numbers(3, 17)})
        assert not rig.cuda.trace
    assert error.value.asked == "run with x:3x17x2"
    for part in ("profile 0 (x:1x1x2 to x:2x4x2): x, axis 0", "profile 1", "axis 1 (x.1) has 17"):
        assert part in error.value.found
    words = r"axis 0 \(x.0\) has 3, outside the profile's 1..2"
    with rig.open(profiles=(SMALL,)) as session, pytest.raises(UsageError, match=words):
        session.run({"x": numbers(3, 4)})


def test_gpu_memory_is_read_and_written_where_it_is(rig):
    x = numbers(2, 3)
    given = OnGpu(rig.cuda, x)
    out = OnGpu(rig.cuda, np.zeros((2, 3, 3), np.float32))
    pointer = Pointer(rig.cuda.put(np.zeros((2, 3, 3), np.float32)), (2, 3, 3), "fp32")
    with rig.open() as session:
        before = rig.cuda.mallocs
        results = session.run({"x": given}, outputs={"y": out, "z": pointer})
        assert results["y"] is out and results["z"] is pointer
        assert rig.cuda.mallocs == before + 1, "the scratch memory, and not one tensor"
        np.testing.assert_array_equal(out.values(), expected(x)["y"])
        z = np.frombuffer(rig.cuda.peek(pointer.address, 72), np.float32)
        np.testing.assert_array_equal(z, expected(x)["z"].ravel())
    rig.cuda.check_clean()


def test_outputs_of_the_callers_may_be_some_and_on_the_host(rig):
    x, y = numbers(2, 3), np.zeros((2, 3, 3), np.float32)
    with rig.open() as session:
        results = session.run({"x": x}, outputs={"y": y})
        assert results["y"] is y
        check(results, x)


@pytest.mark.parametrize("call", ["malloc", "create_stream", "upload", "download", "record"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_fault_of_cuda_leaks_nothing(rig, call, after):
    x = numbers(2, 3)
    with rig.open(cuda_graphs=1) as session:
        rig.cuda.fail[call] = after
        faults = 0
        for method in (session.run, session.enqueue, session.run):
            try:
                check(method({"x": x}), x)
            except UnavailableError as error:
                assert "cudaErrorMemoryAllocation" in error.found
                faults += 1
        assert faults == (0 if call in rig.cuda.fail else 1)
        check(session.run({"x": x}), x)
    rig.cuda.check_clean()


def test_tensorrts_words_reach_the_caller(rig):
    x = numbers(2, 3)
    with rig.open() as session:
        session.run({"x": x})
        live = len(rig.cuda.live())
        rig.trt.launch_fails = True
        for method in (session.run, session.enqueue) * 3:
            with pytest.raises(BuildError, match="launch failed"):
                method({"x": x})
        rig.trt.launch_fails = False
        session.run({"x": x})
        assert len(rig.cuda.live()) == live, "what was made for results is freed at once"
        check(session.run({"x": x}), x)
        rig.trt.out_of_memory = True
    rig.cuda.check_clean()
    session = rig.open()
    with pytest.raises(BuildError, match=r"execution context.*out of memory"):
        session.run({"x": x})
    session.close()
    rig.cuda.check_clean()


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"w": np.zeros((2, 3, 3), np.float32)}, "unknown output w.*The outputs are y, z"),
        ({"y": np.zeros((2, 3, 3), np.float16)}, "output 'y'.*float16 elements.*float32"),
        ({"y": np.zeros((2, 4, 3), np.float32)}, r"output 'y'.*shape \(2, 4, 3\).*\(2, 3, 3\)"),
        ({"y": np.zeros((2, 3), np.float32)}, "shape 2x3"),
        ({"y": np.zeros((2, 3, 6), np.float32)[..., ::2]}, "not row-major"),
        ({"y": np.broadcast_to(np.float32(0), (2, 3, 3))}, "not row-major"),
        ({"y": [[0.0]]}, "a list, whose memory cannot be written"),
    ],
)
def test_outputs_that_do_not_fit(rig, outputs, words):
    with rig.open() as session:
        with pytest.raises(UsageError, match=words):
            session.run({"x": numbers(2, 3)}, outputs=outputs)
        assert not rig.cuda.trace


class Sliced:
    """A part of a tensor: the same memory, some bytes further on."""

    def __init__(self, whole, offset, shape):
        self.whole, self.offset, self.shape = whole, offset, shape

    def __dlpack_device__(self):
        return self.whole.__dlpack_device__()

    def __dlpack__(self, **_):
        where, device = self.whole.address + self.offset, self.__dlpack_device__()
        return dlpack.export(where, self.shape, DType.FP32, device, self.whole)


def test_gpu_feeds_that_do_not_fit(rig):
    x = numbers(2, 3)
    read_only = ByInterface(rig.cuda, np.zeros((2, 3, 3), np.float32), read_only=True)
    with rig.open() as session:
        for value, words in (
            (OnGpu(rig.cuda, x, ordinal=1), "memory of GPU 1.*runs on GPU 0"),
            (ByInterface(rig.cuda, x, strides=(8, 16, 4)), "not row-major"),
            (ByInterface(rig.cuda, x.astype(np.float16)), "float16 elements"),
            (Pointer(4096, (2, 3, 2), "fp16"), "float16 elements"),
            (Pointer(4096, (2, 3, 2), "fp12"), "no such type"),
        ):
            with pytest.raises(UsageError, match=words):
                session.run({"x": value})
        whole = OnGpu(rig.cuda, numbers(3, 3))
        for value in (
            Pointer(whole.address + 24, (2, 3, 2), "fp32"),
            Sliced(whole, 24, (2, 3, 2)),
        ):
            with pytest.raises(UsageError, match=r"multiples of 256 bytes.*allocation of its own"):
                session.run({"x": value})
        check(session.run({"x": Sliced(whole, 0, (2, 3, 2))}), whole.array[:2])
        check(session.run({"x": ByInterface(rig.cuda, x, strides=(24, 8, 4))}), x)
        with pytest.raises(UsageError, match="read-only"):
            session.run({"x": x}, outputs={"y": read_only})
        with pytest.raises(UsageError, match="enqueue leaves results on the GPU"):
            session.enqueue({"x": x}, outputs={"y": np.zeros((2, 3, 3), np.float32)})


def test_layers_are_timed_by_a_callback(rig):
    x, heard = numbers(2, 3), []
    with rig.open(cuda_graphs=1) as session:
        check(session.run({"x": x}, on_layer=lambda *each: heard.append(each)), x)
        assert heard == [("product", 0.00025), ("sum", 0.0005), ("double", 0.00075)]
        for _ in range(3):
            check(session.run({"x": x}), x)
        assert len(heard) == 3 and session.counts["replayed"] == 1

        def bad(name, seconds):
            raise KeyError(name)

        with pytest.raises(KeyError, match="product"):
            session.run({"x": x}, on_layer=bad)
        with pytest.raises(UsageError, match="inside a run"):
            session.run({"x": x}, on_layer=lambda *_: session.close())
        check(session.run({"x": x}), x)
    rig.cuda.check_clean()


def test_an_input_that_is_updated_in_place_has_one_address(rig):
    """As a KV cache: z shares the memory of x."""
    edge = ("fp32", ["batch", 2])
    model = model_of([helper.make_node("Add", ["x", "x"], ["z"])], {"x": edge}, {"z": edge})
    profile = {"x": ((1, 2), (2, 2), (4, 2))}
    path = rig.folder / "cache.plan"
    path.write_bytes(plan_of(model, [profile], aliases={"z": "x"}))
    x = numbers(2, 1)[:, 0]
    with Session(path, target=rig.target, verify=False) as session:
        cache = OnGpu(rig.cuda, x)
        result = session.enqueue({"x": cache})["z"]
        assert result.address == cache.address
        np.testing.assert_array_equal(result.numpy(), 2 * x)
        np.testing.assert_array_equal(session.run({"x": x})["z"], 2 * x)
        first, second = (session.enqueue({"x": x})["z"] for _ in range(2))
        assert first.address != second.address, "host memory is copied for each run"
        np.testing.assert_array_equal(first.numpy(), 2 * x)
        np.testing.assert_array_equal(second.numpy(), 2 * x)
        with pytest.raises(UsageError, match=r"other memory than input 'x'.*updates in place"):
            session.run({"x": cache}, outputs={"z": OnGpu(rig.cuda, x)})
        del first, second, result
    rig.cuda.check_clean()
