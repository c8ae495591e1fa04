"""Captured CUDA graphs and new weights, over the fake GPU."""

import numpy as np
import pytest
from session_rig import BIAS, LARGE, WEIGHT, OnGpu, Rig, expected, numbers, ran, weights

from blockforge.core.errors import BuildError, UnavailableError, UsageError


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


def test_a_size_is_captured_when_it_comes_twice_and_replayed_after(rig):
    with rig.open(cuda_graphs=2) as session:
        for seed in range(4):
            ran(session, numbers(2, 3, seed=seed))
        assert rig.cuda.trace == ["launch", "launch", "capture", "replay", "replay"]
        ran(session, numbers(2, 4))
        counts = session.counts
        assert counts == {"contexts": 1, "captured": 1, "replayed": 2, "evicted": 0}
    rig.cuda.check_clean()


def test_the_least_recently_used_graph_goes(rig):
    a, b, c = ((1, 1), (1, 2), (1, 3))
    with rig.open(cuda_graphs=2, profiles=(LARGE,)) as session:
        session.run({"x": numbers(8, 16)})  # buffers grow once
        for shape in (a, a, b, b, a, c, c):
            ran(session, numbers(*shape))
        assert len(rig.cuda.graphs) == 2 and session.counts["evicted"] == 1
        rig.cuda.trace.clear()
        for shape, how in ((a, "replay"), (c, "replay"), (b, "launch")):
            ran(session, numbers(*shape))
            assert rig.cuda.trace.pop() == how
    rig.cuda.check_clean()


def test_without_the_option_nothing_is_captured(rig):
    with rig.open() as session:
        for _ in range(3):
            ran(session, numbers(2, 3))
    assert set(rig.cuda.trace) == {"launch"}


def test_fresh_addresses_are_launched_and_kept_ones_replayed(rig):
    x = numbers(2, 3)
    with rig.open(cuda_graphs=1) as session:
        for _ in range(3):
            ran(session, OnGpu(rig.cuda, x).array)
            results = session.run({"x": OnGpu(rig.cuda, x)})
        assert session.counts["captured"] == 1, "of the host's"
        same = OnGpu(rig.cuda, x)
        for _ in range(3):
            results = session.run({"x": same})
        assert session.counts["captured"] == 2 and session.counts["evicted"] == 1
        np.testing.assert_array_equal(results["y"], expected(x)["y"])
    rig.cuda.check_clean()


def test_graphs_run_on_the_callers_stream(rig):
    streams = [rig.cuda.foreign_stream() for _ in range(2)]
    x = OnGpu(rig.cuda, numbers(2, 3))
    y, z = (OnGpu(rig.cuda, np.zeros((2, 3, 3), np.float32)) for _ in "yz")
    with rig.open(cuda_graphs=1, contexts=1) as session:
        for turn in range(5):
            results = session.enqueue({"x": x}, outputs={"y": y, "z": z}, stream=streams[turn % 2])
        assert session.counts["replayed"] == 3
        np.testing.assert_array_equal(results["z"].numpy(), expected(x.array)["z"])
        del results
    rig.cuda.check_clean()


def test_a_graph_that_is_queued_is_not_evicted(rig):
    feeds = [OnGpu(rig.cuda, numbers(1, n)) for n in (1, 2)]
    rooms = [{n: OnGpu(rig.cuda, np.zeros((1, s, 3), np.float32)) for n in "yz"} for s in (1, 2)]
    with rig.open(cuda_graphs=1, contexts=1) as session:
        for turn in (0, 0, 0, 1, 1):
            results = session.enqueue({"x": feeds[turn]}, outputs=rooms[turn])
        assert session.counts["evicted"] == 1
        results["y"].wait()
        for x, room in zip(feeds, rooms, strict=True):
            np.testing.assert_array_equal(room["z"].values(), expected(x.array)["z"])
        del results
    rig.cuda.check_clean()


def test_buffers_that_grow_do_not_mislead_a_graph(rig):
    with rig.open(cuda_graphs=4, profiles=(LARGE,)) as session:
        for shape in ((1, 1), (1, 1), (1, 1), (8, 16), (1, 1), (1, 1), (1, 1)):
            ran(session, numbers(*shape, seed=shape[0]))
    rig.cuda.check_clean()


def test_a_capture_that_fails_is_given_up(rig):
    with rig.open(cuda_graphs=1) as session:
        ran(session, numbers(2, 3))
        for name in ("begin_capture", "end_capture"):
            rig.cuda.fail[name] = 0
            with pytest.raises(UnavailableError):
                session.run({"x": numbers(2, 3)})
            ran(session, numbers(2, 3))
        rig.trt.capture_fails = True
        with pytest.raises(BuildError, match="launch failed"):
            session.run({"x": numbers(2, 3)})
        rig.trt.capture_fails = False
        ran(session, numbers(2, 3))
        assert session.counts["captured"] == 0
    rig.cuda.check_clean()


def test_tensorrt_rtx_says_whether_it_can_be_captured(monkeypatch, tmp_path):
    rig = Rig(monkeypatch, tmp_path, architecture="sm89", rtx=True, version="1.7.1")
    with rig.open(cuda_graphs=1) as session:
        for _ in range(3):
            ran(session, numbers(2, 3))
        assert session.counts["replayed"] == 1
    rig.trt.capturable = False
    session = rig.open(cuda_graphs=1)
    with pytest.raises(UsageError, match=r"cannot capture this engine.*Leave cuda_graphs out"):
        session.run({"x": numbers(2, 3)})
    session.close()
    with rig.open() as session:
        ran(session, numbers(2, 3))
    rig.cuda.check_clean()


def test_new_weights_are_in_the_next_run(rig):
    x, weight, bias = numbers(2, 3), WEIGHT[::-1] * 2, BIAS + 5
    new = {"pair_w": weight.astype(np.float32), "pair_b": bias.astype(np.float32)}
    with rig.open(head={"refit": True}, cuda_graphs=2) as session:
        for _ in range(3):
            ran(session, x)
        pending = session.enqueue({"x": x})
        session.refit(new)
        np.testing.assert_array_equal(pending["y"].numpy(), expected(x)["y"])
        for _ in range(4):
            ran(session, x, weight, bias)
        del pending
    rig.cuda.check_clean()


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_weights_may_be_tensors_in_any_type(rig, kind):
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    new = {
        "pair_w": torch.tensor(WEIGHT * 3, dtype=dtype).t().contiguous().t(),
        "pair_b": torch.tensor(BIAS, dtype=dtype),
    }
    with rig.open(kind, head={"refit": True}) as session:
        session.refit(new)
        x = numbers(2, 3, kind)
        y = session.run({"x": x})["y"].astype(np.float64)
        np.testing.assert_array_equal(y, expected(x, WEIGHT * 3)["y"])


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({}, r"no weights.*It has pair_b, pair_w"),
        (weights(pair_v=BIAS), r"unknown weight pair_v.*Near it: pair_"),
        ({"pair_w": WEIGHT.astype(np.float32)}, r"without pair_b.*Give these too"),
        (weights(pair_b=BIAS.astype(np.float16)), r"input 'pair_b'.*float16 elements.*float32"),
        (weights(pair_b=np.zeros(4, np.float32)), r"'pair_b'.*4 elements.*has 3 of them"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(rig, new, words):
    with rig.open(head={"refit": True}) as session:
        with pytest.raises(UsageError, match=words):
            session.refit(new)
        ran(session, numbers(2, 3))


def test_an_engine_without_refit_says_so(rig):
    with (
        rig.open() as session,
        pytest.raises(UsageError, match=r"built without refit.*option refit"),
    ):
        session.refit(weights())


def test_a_plan_without_weights_is_given_them_first(rig):
    with rig.open(head={"refit": True, "stripped": True}) as session:
        with pytest.raises(UsageError, match=r"carries no weights.*Session\.refit"):
            session.run({"x": numbers(1, 1)})
        session.refit(weights())
        ran(session, numbers(2, 3))
    rig.cuda.check_clean()
