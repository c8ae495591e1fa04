"""Many threads on one session: a context for each, waits that end, and a close that waits, over the fake GPU."""

import threading
import time

import numpy as np
import pytest
from fake_refitter import Refitter
from session_rig import WEIGHT, Rig, expected, numbers, ran, weights

from blockforge.core.errors import UnavailableError, UsageError


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


class Gate:
    """Holds runs inside TensorRT's launch until it is opened."""

    def __init__(self, rig, count):
        self.inside, self.open = threading.Barrier(count + 1), threading.Event()
        synchronize = rig.cuda.synchronize

        def held(stream):
            if threading.current_thread() is not threading.main_thread():
                self.inside.wait(60)
                assert self.open.wait(60)
            synchronize(stream)

        rig.patch.setattr(rig.cuda, "synchronize", held)


def started(session, count):
    """Threads that run once each, and what became of them."""
    outcomes = []

    def work(seed):
        try:
            ran(session, numbers(1 + seed % 2, 2, seed=seed))
            outcomes.append("right")
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    return threads, outcomes


def refused(session, outcomes):
    """A refit that cannot be."""
    try:
        session.refit(weights())
    except UsageError as error:
        outcomes.append(error)


def joined(threads):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_each_thread_has_a_context_of_its_own(rig):
    with rig.open(contexts=3) as session:
        gate = Gate(rig, 3)
        threads, outcomes = started(session, 3)
        gate.inside.wait(60)
        assert session.counts["contexts"] == 3
        gate.open.set()
        joined(threads)
        assert outcomes == ["right"] * 3
        rig.patch.undo()
        ran(session, numbers(1, 1))
        assert session.counts["contexts"] == 3
    rig.cuda.check_clean()


def test_a_thread_that_waits_too_long_is_told(rig):
    with rig.open(contexts=1, wait_seconds=0.05) as session:
        gate = Gate(rig, 1)
        threads, outcomes = started(session, 1)
        gate.inside.wait(60)
        with pytest.raises(UnavailableError, match=r"all 1 context\(s\) have been busy for 0.05 s"):
            session.run({"x": numbers(1, 1)})
        with pytest.raises(UnavailableError, match=r"refit.*busy for 0.05 s"):
            session.refit(weights())
        with pytest.raises(UnavailableError, match=r"1 run\(s\) still going.*call close again"):
            session.close()
        with pytest.raises(UsageError, match="the session is closed"):
            session.run({"x": numbers(1, 1)})
        gate.open.set()
        joined(threads)
        assert outcomes == ["right"]
    rig.cuda.check_clean()


def test_close_waits_for_runs_in_progress(rig):
    session = rig.open(contexts=2)
    gate = Gate(rig, 2)
    threads, outcomes = started(session, 2)
    gate.inside.wait(60)
    waiting, late = started(session, 1)  # no context left: it waits, and is refused at the close
    waiting.append(threading.Thread(target=refused, args=(session, late)))
    waiting[-1].start()
    closers = [threading.Thread(target=session.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    joined(waiting)
    assert len(late) == 2 and all("closed" in error.found for error in late)
    assert all(c.is_alive() for c in closers) and rig.cuda.live()
    gate.open.set()
    joined([*threads, *closers])
    assert outcomes == ["right"] * 2
    rig.cuda.check_clean()


def test_runs_and_refits_take_turns(rig):
    """Every result is of one set of weights, old or new, and nothing is launched while they are exchanged."""
    done, wrong, refit = threading.Event(), [], Refitter.refit_cuda_engine

    def slowly(self):
        before = len(rig.cuda.trace)
        time.sleep(0.005)  # the other threads run, if they may
        assert len(rig.cuda.trace) == before
        return refit(self)

    rig.patch.setattr(Refitter, "refit_cuda_engine", slowly)

    def work(number):
        try:
            while not done.is_set():
                x = numbers(1 + number, 2, seed=number)
                y = session.run({"x": x})["y"]
                if not any((y == expected(x, WEIGHT * f)["y"]).all() for f in (1, 2)):
                    wrong.append(y)
        except BaseException as error:
            wrong.append(error)

    with rig.open(contexts=2, head={"refit": True}, cuda_graphs=1) as session:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            for factor in (2, 1) * 6:
                session.refit(weights(pair_w=(WEIGHT * factor).astype(np.float32)))
        finally:
            done.set()
        joined(threads)
        assert not wrong
    rig.cuda.check_clean()
