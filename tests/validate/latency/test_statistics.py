"""Does the estimator tell a planted slowdown from noise? On synthetic noise and on noise recorded from a busy machine."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blockforge.validate.latency.statistics import (
    LEAST_ROUNDS,
    Ratio,
    has_settled,
    paired_ratio,
    percentile,
)

NOISE = json.loads((Path(__file__).parent / "noise.json").read_text())
THRESHOLD, TRIALS = 0.02, 30


def load(kind, generator, count):
    """Two sides of `count` rounds, in seconds, of one workload on a machine with this kind of trouble."""
    shared = np.ones(count)
    own = generator.normal(0, 0.01, (2, count))
    if kind == "drift":  # the clock falls, for both
        shared = np.linspace(1, 1.8, count)
    elif kind == "two speeds":  # another process comes and goes over many rounds
        shared = np.where(np.cumsum(generator.random(count) < 0.1) % 2, 1.9, 1.0)
    elif kind == "bursts":  # one side in ten rounds loses the core
        own = own + np.where(
            generator.random((2, count)) < 0.15, generator.exponential(1.0, (2, count)), 0
        )
    elif kind == "heavy tails":
        own = generator.standard_t(2, (2, count)) * 0.01
    return 0.01 * shared * np.exp(own)


KINDS = ("quiet", "drift", "two speeds", "bursts", "heavy tails")


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_slowdown_is_detected_and_two_equal_sides_are_not(kind):
    """The seed is fixed. At an error rate of 1 %, 30 trials show three or more errors once in 300 sets."""
    generator = np.random.default_rng(3)
    verdicts = {1.0: [], 1.05: [], 1 / 1.05: []}
    for trial in range(TRIALS):
        for slowdown, found in verdicts.items():
            a, b = load(kind, generator, 100)
            found.append(paired_ratio(a * slowdown, b, seed=trial).verdict(THRESHOLD))
    assert verdicts[1.0].count("no difference") >= TRIALS - 2
    assert verdicts[1.05].count("slower") >= TRIALS - 1
    assert verdicts[1 / 1.05].count("faster") >= TRIALS - 1


LONG = [r for r in NOISE if len(r["a"]) >= 50]
SHORT = [r for r in NOISE if len(r["a"]) < 50]


def sides(recording):
    return np.asarray(recording["a"]), np.asarray(recording["b"])


@pytest.mark.parametrize("recording", LONG, ids=lambda r: r["of"])
def test_on_recorded_noise(recording):
    """Both sides are one graph in two sessions, on two cores that several processes shared; the slowdown is planted."""
    a, b = sides(recording)
    assert paired_ratio(a, b).verdict(THRESHOLD) == "no difference"
    assert paired_ratio(b, a).verdict(THRESHOLD) == "no difference"
    assert paired_ratio(a * 1.05, b).verdict(THRESHOLD) == "slower"
    assert paired_ratio(a, b * 1.05).verdict(THRESHOLD) == "faster"


@pytest.mark.parametrize("recording", SHORT, ids=lambda r: r["of"])
def test_too_few_noisy_rounds_say_nothing_rather_than_something_wrong(recording):
    a, b = sides(recording)
    assert paired_ratio(a, b).verdict(THRESHOLD) == "no difference"
    assert paired_ratio(a * 1.05, b).verdict(THRESHOLD) == "no difference"
    assert paired_ratio(a * 1.2, b).verdict(THRESHOLD) == "slower"


@pytest.mark.parametrize("recording", LONG, ids=lambda r: r["of"])
def test_rounds_resampled_from_recorded_noise(recording):
    """The same noise in 30 other samples: at most two false alarms."""
    a, b = sides(recording)
    generator = np.random.default_rng(1)
    logs = np.log(a / b) - np.median(np.log(a / b))
    alarms = 0
    for trial in range(30):
        drawn = generator.choice(logs, len(logs)) * generator.choice([-1, 1], len(logs))
        found = paired_ratio(np.exp(drawn), np.ones(len(logs)), seed=trial)
        alarms += found.verdict(THRESHOLD) != "no difference"
    assert alarms <= 2


def test_pairing_is_what_finds_it():
    """The near miss: torn apart, the same times on a machine that slows down give a far wider interval."""
    a, b = load("drift", np.random.default_rng(4), 100)
    paired = paired_ratio(a * 1.05, b)
    torn = paired_ratio(np.random.default_rng(0).permutation(a) * 1.05, b)
    assert paired.verdict(THRESHOLD) == "slower"
    assert math.log(torn.high / torn.low) > 5 * math.log(paired.high / paired.low)


@pytest.mark.parametrize("count", [LEAST_ROUNDS, 40, 150])
def test_the_interval_covers_as_often_as_it_says(count):
    """Lognormal rounds with a true ratio of 1.3: at least 95 of 100 intervals of 99 % hold it, whatever the count."""
    generator = np.random.default_rng(count)
    covered = 0
    for trial in range(100):
        logs = generator.normal(0, 0.05, (2, count))
        found = paired_ratio(1.3 * np.exp(logs[0]), np.exp(logs[1]), seed=trial)
        covered += found.low <= 1.3 <= found.high
    assert covered >= 95


def test_the_interval_is_that_of_the_order_statistics():
    """Against the exact interval of a median from the binomial law, which shares no code with the bootstrap."""
    logs = np.random.default_rng(8).normal(0, 0.1, 61)
    found = paired_ratio(np.exp(logs), np.ones(61))
    ranked = np.sort(np.exp(logs))
    below = np.cumsum([math.comb(61, k) / 2**61 for k in range(62)])
    low = int(np.argmax(below >= 0.005))
    exact = ranked[low - 1], ranked[61 - low]
    steps = np.diff(ranked).max()
    assert abs(found.low - exact[0]) < 2 * steps and abs(found.high - exact[1]) < 2 * steps


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(1.05, 1.01, 1.09, 30), "slower"),
        (Ratio(1.05, 0.99, 1.11, 30), "no difference"),  # the interval holds 1
        (Ratio(1.01, 1.005, 1.015, 30), "no difference"),  # certain, and too small to matter
        (Ratio(0.95, 0.91, 0.99, 30), "faster"),
        (Ratio(0.95, 0.90, 1.01, 30), "no difference"),
        (Ratio(0.99, 0.985, 0.995, 30), "no difference"),
    ],
)
def test_verdicts(ratio, verdict):
    assert ratio.verdict(THRESHOLD) == verdict


def test_settling_waits_for_the_fall_to_end():
    """Compile, caches, clocks: an exponential fall to a level, with 1 % of noise."""
    generator = np.random.default_rng(0)
    falling = 1 + 4 * np.exp(-np.arange(200) / 8)
    times = list(falling * np.exp(generator.normal(0, 0.01, 200)))
    stopped = next(n for n in range(len(times)) if has_settled(times[:n]))
    assert 15 < stopped < 90
    assert falling[stopped - 6] < 1.5, "the last window lies near the level"


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_settles_soon(seed):
    times = list(np.exp(np.random.default_rng(seed).standard_t(2, 60) * 0.1))
    assert any(has_settled(times[:n]) for n in range(12, 30))


def test_rising_times_have_not_settled_and_equal_ones_have():
    assert not has_settled([1.0 + 0.1 * n for n in range(30)])
    assert not has_settled([1.0] * 11)
    assert has_settled([1.0] * 12)
    assert has_settled([1 + 1e-4 * n for n in range(30)]), "a certain drift of 0.06 % is none"


def test_percentiles_are_only_given_where_the_samples_have_them():
    times = [float(n) for n in range(1, 101)]
    assert percentile(times, 50) == 50.5
    assert percentile(times, 99) == pytest.approx(99.01)
    assert percentile(times[:99], 99) is None
    assert percentile(times[:10], 90) == pytest.approx(9.1)
    assert percentile(times[:9], 90) is None
    assert all(low <= high for low, high in pairwise(percentile(times, p) for p in (50, 90, 99)))
