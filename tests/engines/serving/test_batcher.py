"""Dynamic batching: what is joined, what is not, and that one request never spoils another. Plain asyncio, no server."""

import asyncio
import threading
import time

import numpy as np
import pytest

from blockforge.core.errors import UnavailableError
from blockforge.engines.serving.batcher import Batcher


class Doubler:
    """A model of rows: y = 2 x, and the shapes that it was run on. A row of 13 fails. held: the first run waits for `release`."""

    def __init__(self, held=False):
        self.shapes, self.threads, self.inside = [], set(), 0
        self.entered, self.release = threading.Event(), threading.Event()
        if not held:
            self.release.set()

    def __call__(self, feeds):
        self.inside += 1
        assert self.inside == 1, "two runs at once"
        self.shapes.append(feeds["x"].shape)
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.release.wait(60)
        self.inside -= 1
        if (feeds["x"] == 13).any():
            raise ValueError("unlucky")
        return {"y": feeds["x"] * 2}


def x(value, rows=1, length=3):
    return {"x": np.full((rows, length), value, np.float32)}


def session(limit, scenario, run=None, **options):
    """Run `scenario(batcher)` in a fresh event loop, for a minute at most; the doubler and what the scenario returned."""
    run, seen = run or Doubler(), []

    async def main():
        batcher = Batcher(run, limit, observe=lambda *sizes: seen.append(sizes), **options)
        try:
            return await asyncio.wait_for(scenario(batcher), 60)
        finally:
            await batcher.close()

    return run, asyncio.run(main()), seen


def submit_all(*feeds):
    async def scenario(batcher):
        return await asyncio.gather(*map(batcher.submit, feeds), return_exceptions=True)

    return scenario


def test_requests_are_joined_and_split_again():
    feeds = [x(n, rows=n) for n in (1, 2, 3)]
    run, results, seen = session(8, submit_all(*feeds), wait_seconds=0.05)
    assert run.shapes == [(6, 3)] and seen == [(3, 6)]
    for fed, result in zip(feeds, results, strict=True):
        np.testing.assert_array_equal(result["y"], fed["x"] * 2)


def test_other_sizes_and_types_run_apart_without_padding():
    feeds = [x(1), x(2, length=5), x(3), {"x": np.full((1, 3), 4, np.float64)}]
    run, results, _ = session(8, submit_all(*feeds), wait_seconds=0.02)
    assert sorted(run.shapes) == [(1, 3), (1, 5), (2, 3)]
    for fed, result in zip(feeds, results, strict=True):
        np.testing.assert_array_equal(result["y"], fed["x"] * 2)
        assert result["y"].dtype == fed["x"].dtype


def test_a_batch_never_passes_the_limit():
    feeds = [x(n, rows=3) for n in range(5)]
    run, results, _ = session(8, submit_all(*feeds), wait_seconds=0.01)
    assert sorted(s[0] for s in run.shapes) == [3, 6, 6]
    assert [r["y"][0, 0] for r in results] == [0, 2, 4, 6, 8]


def test_a_full_batch_does_not_wait():
    run, _, _ = session(4, submit_all(*(x(n) for n in range(4))), wait_seconds=3600.0)
    assert run.shapes == [(4, 3)]


def test_the_first_waits_as_long_as_it_was_told():
    async def scenario(batcher):
        start = time.monotonic()
        await batcher.submit(x(1))
        return time.monotonic() - start

    _, alone, _ = session(4, scenario, wait_seconds=0.2)
    assert alone >= 0.2


async def running(batcher, run):
    """A request inside a run that has begun and is held."""
    first = asyncio.create_task(batcher.submit(x(1)))
    assert await asyncio.to_thread(run.entered.wait, 60)
    return first


def test_what_comes_while_it_runs_is_joined_next():
    run = Doubler(held=True)

    async def scenario(batcher):
        first = await running(batcher, run)
        rest = [asyncio.create_task(batcher.submit(x(n))) for n in range(6)]
        await asyncio.sleep(0)
        run.release.set()
        await asyncio.gather(first, *rest)

    session(8, scenario, run=run, wait_seconds=0.0)
    assert run.shapes == [(1, 3), (6, 3)]
    assert len(run.threads) == 1 and threading.get_ident() not in run.threads


def test_no_limit_means_no_joining():
    run, results, seen = session(0, submit_all(x(1), x(2)), wait_seconds=0.05)
    assert run.shapes == [(1, 3), (1, 3)] and seen == [(1, 1), (1, 1)]
    assert [r["y"][0, 0] for r in results] == [2, 4]


def test_a_request_that_fails_fails_alone():
    run, results, _ = session(8, submit_all(x(1), x(13), x(3)), wait_seconds=0.05)
    assert isinstance(results[1], ValueError)
    assert [r["y"][0, 0] for r in (results[0], results[2])] == [2, 6]
    assert run.shapes == [(3, 3), (1, 3), (1, 3), (1, 3)]


def test_outputs_that_are_no_rows_are_refused():
    async def scenario(batcher):
        return await asyncio.gather(
            batcher.submit(x(1)), batcher.submit(x(2)), return_exceptions=True
        )

    def pooled(feeds):
        return {"y": feeds["x"].sum(axis=0)}

    _, results, _ = session(8, scenario, run=pooled, wait_seconds=0.05)
    assert [r["y"].shape for r in results] == [(3,), (3,)]  # each ran alone: its rows are its own


def test_a_client_that_left_is_not_run_for():
    run = Doubler(held=True)

    async def scenario(batcher):
        busy = await running(batcher, run)
        gone, stays = (asyncio.create_task(batcher.submit(x(n))) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        run.release.set()
        return await asyncio.gather(busy, gone, stays, return_exceptions=True)

    _, results, _ = session(8, scenario, run=run, wait_seconds=0.0)
    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2]["y"][0, 0] == 6
    assert run.shapes == [(1, 3), (1, 3)]


def test_closing_lets_the_run_end_and_turns_away_whoever_waits():
    run = Doubler(held=True)

    async def scenario(batcher):
        inside = await running(batcher, run)
        waits = asyncio.create_task(batcher.submit(x(2)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        run.release.set()
        await closing
        return await asyncio.gather(inside, waits, batcher.submit(x(3)), return_exceptions=True)

    _, results, _ = session(8, scenario, run=run, wait_seconds=0.0)
    assert results[0]["y"][0, 0] == 2 and run.shapes == [(1, 3)]
    assert [type(error) for error in results[1:]] == [UnavailableError] * 2


def test_closing_does_not_wait_for_a_batch_to_fill():
    async def scenario(batcher):
        waits = asyncio.create_task(batcher.submit(x(1)))
        await asyncio.sleep(0.01)
        await batcher.close()
        return await asyncio.gather(waits, return_exceptions=True)

    _, (error,), _ = session(8, scenario, wait_seconds=3600.0)
    assert isinstance(error, UnavailableError)


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_mixed_sizes_gets_its_own_rows(seed):
    random = np.random.default_rng(seed)
    feeds = [
        {"x": random.standard_normal((random.integers(1, 5), random.integers(1, 4)))}
        for _ in range(100)
    ]

    async def scenario(batcher):
        async def one(fed):
            await asyncio.sleep(float(random.uniform(0, 0.02)))
            return await batcher.submit(fed)

        return await asyncio.gather(*map(one, feeds))

    run, results, seen = session(8, scenario, wait_seconds=0.002)
    for fed, result in zip(feeds, results, strict=True):
        np.testing.assert_array_equal(result["y"], fed["x"] * 2)
    assert max(shape[0] for shape in run.shapes) <= 8
    assert sum(requests for requests, _ in seen) == 100 and len(seen) < 100
