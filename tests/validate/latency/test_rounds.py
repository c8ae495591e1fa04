"""The order of the measurements, on workloads whose clock the test turns itself; and one real pair on ONNX Runtime."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from blockforge.core.errors import UsageError
from blockforge.validate.latency.rounds import Effort, measure
from blockforge.validate.latency.statistics import LEAST_ROUNDS, paired_ratio
from blockforge.validate.latency.workload import CLOCKS, CallWorkload


class World:
    """Time that passes only when a workload runs; `speed` says how long a nominal second takes at a moment."""

    def __init__(self, speed=lambda now: 1.0):
        self.now, self.speed, self.log = 0.0, speed, []


@dataclass
class Fake:
    world: World
    label: str
    nominal: float
    first: float = 0.0  # extra seconds of the first call
    warming: int = 0  # calls that are slower, less and less
    clock: str = "fake"
    calls: int = 0
    prepared: list = field(default_factory=list)

    def prepare(self, feeds):
        self.prepared.append(feeds)

    def time(self):
        cold = self.first if self.calls == 0 else 0.0
        cold += self.nominal * max(self.warming - self.calls, 0) / 10
        self.calls += 1
        taken = (self.nominal + cold) * self.world.speed(self.world.now)
        self.world.now += taken
        self.world.log.append(self.label)
        return taken

    def close(self):
        pass


def run(world, sides, **effort):
    return measure(sides, [{}] * len(sides), Effort(**effort), now=lambda: world.now)


def test_first_call_and_warm_up_stay_out_of_the_numbers():
    world = World()
    side = Fake(world, "a", 0.05, first=3.0, warming=40)
    (series,) = run(world, [side], seconds=4.0)
    assert series.first == pytest.approx(3.05 + 0.2)
    assert len(series.warmup) >= 12 and series.settled
    assert np.ptp(series.calls) == pytest.approx(0) and series.calls[0] == pytest.approx(0.05)
    assert side.calls == 1 + len(series.warmup) + len(series.calls)


def test_what_never_settles_is_measured_and_said():
    world = World(speed=lambda now: 1 + now)
    (series,) = run(world, [Fake(world, "a", 0.05)], seconds=0.1, warmup_seconds=(0.1, 2.0))
    assert not series.settled and len(series.calls) == 2 * LEAST_ROUNDS


def test_a_round_is_an_order_and_its_mirror_image():
    world = World()
    sides = [Fake(world, name, 0.05) for name in "abc"]
    series = run(world, sides, seconds=3.0)
    tail = world.log[-6 * len(series[0].rounds) :]
    rounds = [tail[i : i + 6] for i in range(0, len(tail), 6)]
    assert all(r[:3] == r[:2:-1] and set(r) == set("abc") for r in rounds)
    firsts = Counter(r[0] for r in rounds)
    assert len(firsts) == 3, "every side goes first now and then"


def test_the_seed_fixes_the_order():
    logs = []
    for seed in (0, 0, 1):
        world = World()
        run(world, [Fake(world, n, 0.05) for n in "ab"], seconds=3.0, seed=seed)
        logs.append(world.log)
    assert logs[0] == logs[1] != logs[2]


def test_a_linear_drift_cancels_within_every_round():
    """The machine slows from 1 to about 2; both sides cost the same, and the ratio is 1 in every single round."""
    world = World(speed=lambda now: 1 + now / 20)
    a, b = run(world, [Fake(world, n, 0.05) for n in "ab"], seconds=4.0)
    assert max(a.rounds) / min(a.rounds) > 1.1, "the drift is there"
    np.testing.assert_allclose(np.divide(a.rounds, b.rounds), 1, atol=2e-3)


@pytest.mark.parametrize(("slowdown", "verdict"), [(1.0, "no difference"), (1.05, "slower")])
def test_a_slowdown_is_found_while_the_machine_changes_speed(slowdown, verdict):
    """Speed wanders by a factor of 1.5 and one call in twelve is interrupted for its own length."""
    noise = np.random.default_rng(11)

    def speed(now):
        return 1.25 + 0.25 * np.sin(now / 3) + (noise.random() < 1 / 12) + noise.normal(0, 0.02)

    world = World(speed)
    b, a = Fake(world, "b", 0.004), Fake(world, "a", 0.004 * slowdown)
    found_a, found_b = run(world, [a, b], seconds=5.0)
    assert paired_ratio(found_a.rounds, found_b.rounds).verdict(0.02) == verdict


def test_short_calls_are_grouped_and_long_ones_still_get_twelve_rounds():
    world = World()
    short, long = run(world, [Fake(world, "s", 0.001), Fake(world, "l", 2.0)], seconds=1.0)
    assert len(long.rounds) == len(short.rounds) == LEAST_ROUNDS
    assert len(short.calls) == LEAST_ROUNDS * 2 * 20 and len(long.calls) == LEAST_ROUNDS * 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_effort_is_a_length_of_time(seconds):
    with pytest.raises(UsageError, match="measure for"):
        Effort(seconds=seconds)


@pytest.fixture(scope="module")
def session():
    """Eight products of 256 x 256 on one thread: about a millisecond."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(8)]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (128, 256)) for n in ("x0", "x8")]
    initializer = onnx.numpy_helper.from_array(weight, "w")
    graph = helper.make_graph(nodes, "chain", value[:1], value[1:], [initializer])
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize(("calls", "verdict"), [(20, "no difference"), (21, "slower")])
def test_five_percent_more_work_is_found_on_onnx_runtime(session, calls, verdict):
    """One call of 20 is 5 %. CPU time of the process, so that waiting for a core does not count.

    Interruptions still cost caches; the rounds that they hit are the tails that the median leaves out.
    """
    x = np.ones((128, 256), np.float32)

    def workload(count):
        def bind(feeds):
            return lambda: [session.run(None, {"x0": x}) for _ in range(count)]

        return CallWorkload(f"{count} calls", bind, CLOCKS["cpu"])

    a, b = measure([workload(calls), workload(20)], [{}, {}], Effort(seconds=3.0))
    ratio = paired_ratio(a.rounds, b.rounds)
    assert ratio.verdict(0.02) == verdict, ratio
