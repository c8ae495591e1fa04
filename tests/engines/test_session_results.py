"""Results that stay on the GPU and streams of the caller's, over the fake GPU: order, lifetimes, and who frees what when."""

import gc
import weakref

import numpy as np
import pytest
from fake_memory import DeviceError
from session_rig import LARGE, ByInterface, OnGpu, Rig, check, expected, numbers

from blockforge.core.errors import UsageError
from blockforge.engines.session import Pointer


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


def test_enqueue_returns_before_the_work_is_done(rig):
    x, stream = numbers(2, 3), rig.cuda.foreign_stream()
    with rig.open() as session:
        results = session.enqueue({"x": x}, stream=stream)
        with pytest.raises(DeviceError, match="still writes"):
            rig.cuda.peek(results["y"].address, 4)
        results["y"].wait()
        assert (
            rig.cuda.peek(results["y"].address, 4) == expected(x)["y"].astype("<f4").tobytes()[:4]
        )
        check(results, x)
        assert results["y"].shape == (2, 3, 3) and results["y"].dtype.value == "fp32"
    rig.cuda.check_clean()


def test_one_slot_on_many_streams_is_in_order(rig):
    streams = [rig.cuda.foreign_stream() for _ in range(3)]
    with rig.open(contexts=1) as session:
        made = [
            (x, session.enqueue({"x": x}, stream=streams[n % 3]))
            for n, x in enumerate(numbers(1 + n % 3, 2, seed=n) for n in range(7))
        ]
        assert session.counts["contexts"] == 1
        for x, results in reversed(made):
            check(results, x)
        del made, results
    rig.cuda.check_clean()


def test_results_feed_the_next_run_without_the_host(rig):
    """A consumer's stream waits by itself, unless it said that it takes care of that."""
    stream, x = rig.cuda.foreign_stream(), numbers(2, 3)
    with rig.open(profiles=(LARGE,)) as session:
        results = session.enqueue({"x": x}, stream=stream)
        consumer = rig.cuda.foreign_stream()
        capsule = results["y"].__dlpack__(stream=consumer)
        got = []

        def read(clock, on):
            got.append(rig.cuda.load(results["y"].address, 72, clock, on))

        rig.cuda.push(consumer, read)
        rig.cuda.progress()
        np.testing.assert_array_equal(
            np.frombuffer(got[0], np.float32).reshape(2, 3, 3), expected(x)["y"]
        )
        del capsule
        late = rig.cuda.foreign_stream()
        results["y"].__dlpack__(stream=-1)  # the consumer said that it takes care
        rig.cuda.push(late, read)
        with pytest.raises(DeviceError, match="without waiting"):
            rig.cuda.progress()


def test_the_cuda_array_interface_names_the_stream(rig):
    stream = rig.cuda.foreign_stream()
    with rig.open() as session:
        about = session.enqueue({"x": numbers(1, 1)}, stream=stream)["y"].__cuda_array_interface__
    assert about["stream"] == stream and about["typestr"] == "<f4" and about["shape"] == (1, 1, 3)
    with rig.open("bf16") as session:
        result = session.enqueue({"x": numbers(1, 1, "bf16")})["y"]
        assert not hasattr(result, "__cuda_array_interface__"), "it has no bf16"


def test_what_is_fed_lives_until_the_run_is_done(rig):
    x = numbers(2, 3)
    values = x.copy()
    with rig.open() as session:
        results = session.enqueue({"x": x})
        del x
        gc.collect()
        check(results, values)
        gpu = OnGpu(rig.cuda, values)
        released = []
        weakref.finalize(gpu, released.append, True)
        results = session.enqueue({"x": gpu})
        del gpu
        gc.collect()
        assert not released
        check(results, values)
        gc.collect()
        assert released, "and no longer"


def test_dropped_results_are_freed_when_the_work_is_done(rig):
    with rig.open() as session:
        session.enqueue({"x": numbers(2, 3)})
        gc.collect()
        live = len(rig.cuda.live())
        rig.cuda.progress()
        session.run({"x": numbers(2, 3)})
        gc.collect()
        session.run({"x": numbers(2, 3)})
        assert len(rig.cuda.live()) < live + 2
    rig.cuda.check_clean()


def test_a_hundred_results_nobody_reads_do_not_pile_up(rig):
    with rig.open() as session:
        for seed in range(100):
            session.enqueue({"x": numbers(2, 3, seed=seed)})
            rig.cuda.progress()
        gc.collect()
        session.run({"x": numbers(2, 3)})
        assert len(rig.cuda.live()) < 12 and len(rig.cuda.events) < 4


def test_closing_frees_everything_but_what_was_handed_on(rig):
    x = numbers(2, 3)
    session = rig.open()
    kept, mine = session.enqueue({"x": x}), session.enqueue({"x": x})
    capsule = kept["y"].__dlpack__(stream=-1)
    address = kept["y"].address
    session.close()
    assert rig.cuda.live() == [address]
    np.testing.assert_array_equal(
        np.frombuffer(rig.cuda.peek(address, 72), np.float32).reshape(2, 3, 3), expected(x)["y"]
    )
    for result in (kept["y"], mine["y"], mine["z"]):
        with pytest.raises(UsageError, match="session is closed"):
            result.numpy()
    with pytest.raises(UsageError, match="session is closed"):
        mine["y"].__dlpack__()
    del kept, result
    gc.collect()
    assert rig.cuda.live() == [address], "the capsule has it"
    del capsule
    gc.collect()
    rig.cuda.check_clean()
    session.close()


@pytest.mark.parametrize("use", ["run", "enqueue", "refit"])
def test_a_closed_session_says_so(rig, use):
    session = rig.open()
    session.close()
    with pytest.raises(UsageError, match="the session is closed"):
        getattr(session, use)({"x": numbers(1, 1)})
    rig.cuda.check_clean()


def test_a_session_that_nobody_closes_is_freed(rig):
    session = rig.open()
    session.run({"x": numbers(1, 1)})
    del session
    gc.collect()
    rig.cuda.check_clean()


@pytest.mark.parametrize("make", [OnGpu, ByInterface])
def test_a_producer_that_still_writes_is_waited_for(rig, make):
    x, producer = numbers(2, 3), rig.cuda.foreign_stream()
    given = make(rig.cuda, x, producer)
    with rig.open() as session:
        check(session.run({"x": given}), x)
    if make is OnGpu:
        assert given.asked == [session_stream(given.asked)], "the producer was told the stream"
    rig.cuda.check_clean()


def session_stream(asked):
    (stream,) = asked
    assert stream not in (None, 0, -1)
    return stream


def test_a_pointer_that_is_not_ready_is_the_callers_fault(rig):
    """The near miss: nobody says that the producer's stream still writes."""
    x, producer = numbers(2, 3), rig.cuda.foreign_stream()
    address = rig.cuda.put(x, producer)
    with rig.open() as session:
        check(session.run({"x": Pointer(address, (2, 3, 2), "fp32")}, stream=producer), x)
        address = rig.cuda.put(x, producer)
        with pytest.raises(DeviceError, match="without waiting"):
            session.run({"x": Pointer(address, (2, 3, 2), "fp32")})


def test_streams_as_libraries_have_them(rig):
    stream, x = rig.cuda.foreign_stream(), numbers(1, 2)

    class Torch:
        cuda_stream = stream

    class Core:
        def __cuda_stream__(self):
            return 0, stream

    class CuPy:
        ptr = stream

    class Handle:
        def __int__(self):
            return stream

    with rig.open() as session:
        for given in (stream, Torch(), Core(), CuPy(), Handle()):
            before = rig.cuda.streams[stream].clock.get(stream, 0)
            check(session.run({"x": x}, stream=given), x)
            assert rig.cuda.streams[stream].clock[stream] > before, "the run was on it"
        for given in (True, "7", -1, 1.5 + 2j):
            with pytest.raises(UsageError, match="no CUDA stream"):
                session.run({"x": x}, stream=given)
        with rig.cuda.current():
            rig.cuda.begin_capture(stream)
        with pytest.raises(UsageError, match="is being captured"):
            session.run({"x": x}, stream=stream)
        rig.cuda.abandon_capture(stream)
