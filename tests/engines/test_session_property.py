"""Any order of open, run, enqueue, read, hand on, refit, fault and close, also by several threads: right numbers, no leak.

FakeCuda raises for a double free, a use after free or out of bounds, an unordered access and a broken capture.
"""

import gc
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from session_rig import BIAS, LARGE, SMALL, WEIGHT, ByInterface, OnGpu, Rig, expected, numbers

from blockforge.core.errors import UnavailableError, UsageError

SHAPES = st.sampled_from([(1, 1), (2, 3), (2, 4), (8, 16), (3, 2)])
SEEDS = st.integers(0, 3)
FAULTS = st.sampled_from(
    ["malloc", "create_stream", "upload", "download", "record", "launch", "begin_capture"]
)


class Sessions(RuleBasedStateMachine):
    """One device, one session at a time, results and capsules that may outlive it."""

    def __init__(self):
        super().__init__()
        self.patch, self.folder = pytest.MonkeyPatch(), tempfile.TemporaryDirectory()
        self.rig = Rig(self.patch, Path(self.folder.name))
        self.cuda, self.session, self.factor = self.rig.cuda, None, 1
        self.streams = [None, *(self.cuda.foreign_stream() for _ in range(2))]
        self.pending, self.capsules, self.kept = [], [], {}

    @initialize(contexts=st.integers(1, 3), graphs=st.integers(0, 2), swap=st.booleans())
    def start(self, contexts, graphs, swap):
        self.open(contexts, graphs, swap)

    @precondition(lambda self: self.session is None)
    @rule(contexts=st.integers(1, 3), graphs=st.integers(0, 2), swap=st.booleans())
    def open(self, contexts, graphs, swap):
        profiles = (LARGE, SMALL) if swap else (SMALL, LARGE)
        self.factor = 1
        self.session = self.rig.open(
            "fp32", profiles, head={"refit": True}, contexts=contexts, cuda_graphs=graphs
        )

    def truth(self, x):
        return expected(x, WEIGHT * self.factor, BIAS)

    def check(self, results, truth):
        for name, value in truth.items():
            got = results[name]
            if isinstance(got, OnGpu):
                got = got.values()
            np.testing.assert_array_equal(got, value)

    def fed(self, x, how):
        """x in memory that is the same object each time, or a new one."""
        if how == "kept":
            key = (x.shape, x.tobytes())
            return self.kept.setdefault(key, OnGpu(self.cuda, x))
        return {"host": lambda: x, "gpu": lambda: OnGpu(self.cuda, x, self.streams[1]),
                "interface": lambda: ByInterface(self.cuda, x, self.streams[2])}[how]()  # fmt: skip

    @precondition(lambda self: self.session)
    @rule(
        shape=SHAPES,
        seed=SEEDS,
        how=st.sampled_from(["host", "gpu", "interface", "kept"]),
        into=st.sampled_from([None, "host", "gpu"]),
        stream=st.integers(0, 2),
        layers=st.booleans(),
    )
    def run(self, shape, seed, how, into, stream, layers):
        x = numbers(*shape, seed=seed)
        room = np.zeros((*shape, 3), np.float32)
        outputs = {None: {}, "host": {"y": room}, "gpu": {"z": OnGpu(self.cuda, room)}}[into]
        on_layer = (lambda *_: None) if layers else None
        results = self.session.run(
            {"x": self.fed(x, how)},
            outputs=outputs,
            stream=self.streams[stream],
            on_layer=on_layer,
        )
        self.check(results, self.truth(x))

    @precondition(lambda self: self.session)
    @rule(shape=SHAPES, seed=SEEDS, stream=st.integers(0, 2))
    def enqueue(self, shape, seed, stream):
        x = numbers(*shape, seed=seed)
        results = self.session.enqueue({"x": x}, stream=self.streams[stream])
        self.pending.append((dict(results), self.truth(x), self.session))

    @precondition(lambda self: self.pending)
    @rule(last=st.booleans())
    def read(self, last):
        results, truth, session = self.pending.pop(-1 if last else 0)
        if session is self.session:
            self.check({name: r.numpy() for name, r in results.items()}, truth)
        else:
            with pytest.raises(UsageError, match="closed"):
                results["y"].numpy()

    @precondition(lambda self: self.pending)
    @rule()
    def drop(self):
        self.pending.pop()

    @precondition(lambda self: self.pending and self.pending[-1][2] is self.session)
    @rule(stream=st.integers(1, 2))
    def hand_on(self, stream):
        results, truth, _ = self.pending.pop()
        capsule = results["y"].__dlpack__(stream=self.streams[stream])
        self.capsules.append((capsule, results["y"].address, truth["y"], self.streams[stream]))

    @precondition(lambda self: self.capsules)
    @rule()
    def consume(self):
        """The consumer reads on its own stream, whatever has been closed meanwhile."""
        capsule, address, truth, stream = self.capsules.pop()
        got = []
        nbytes = truth.size * 4
        self.cuda.push(
            stream, lambda clock, on: got.append(self.cuda.load(address, nbytes, clock, on))
        )
        with self.cuda.current():
            self.cuda.synchronize(stream)
        np.testing.assert_array_equal(np.frombuffer(got[0], np.float32), truth.ravel())
        del capsule

    @precondition(lambda self: self.session)
    @rule(factor=st.integers(1, 3), good=st.booleans())
    def refit(self, factor, good):
        new = {"pair_w": (WEIGHT * factor).astype(np.float32), "pair_b": BIAS.astype(np.float32)}
        if good:
            self.session.refit(new)
            self.factor = factor
        else:
            with pytest.raises(UsageError):
                self.session.refit({"pair_w": new["pair_w"]})

    @precondition(lambda self: self.session)
    @rule(threads=st.integers(2, 4), seed=SEEDS, closes=st.booleans())
    def at_once(self, threads, seed, closes):
        """Several threads run and enqueue; perhaps the session is closed under them."""
        wrong, session = [], self.session

        def work(number):
            try:
                for turn in range(3):
                    x = numbers(1 + number % 2, 1 + turn, seed=seed + number)
                    self.check(session.run({"x": x}), self.truth(x))
                    later = session.enqueue({"x": x})
                    self.check({name: r.numpy() for name, r in later.items()}, self.truth(x))
            except BaseException as error:
                if not (closes and isinstance(error, UsageError) and "closed" in error.found):
                    wrong.append(error)

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        if closes:
            session.close()
            self.session = None
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        assert not wrong

    @rule()
    def progress(self):
        self.cuda.progress()

    @precondition(lambda self: self.session)
    @rule(name=FAULTS, after=st.integers(0, 3), shape=SHAPES, queued=st.booleans())
    def fault(self, name, after, shape, queued):
        """CUDA fails somewhere in a run; the next one is right."""
        x = numbers(*shape)
        self.cuda.fail[name] = after
        try:
            results = (self.session.enqueue if queued else self.session.run)({"x": x})
            self.check({n: r.numpy() if queued else r for n, r in results.items()}, self.truth(x))
        except UnavailableError as error:
            assert "cudaErrorMemoryAllocation" in error.found
        self.cuda.fail.clear()
        self.check(self.session.run({"x": x}), self.truth(x))

    @precondition(lambda self: self.session)
    @rule()
    def close(self):
        self.session.close()
        self.session = None

    def teardown(self):
        if self.session is not None:
            self.session.close()
        self.pending.clear()
        self.capsules.clear()
        gc.collect()
        try:
            self.cuda.check_clean()
        finally:
            self.patch.undo()
            self.folder.cleanup()


Sessions.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
test_any_order = Sessions.TestCase
