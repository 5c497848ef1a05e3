"""The pace of a census: few topics are counted at once, many over a time in which the store hardly notices it."""

from __future__ import annotations

import pytest

from later.daemon import pace
from later.daemon.census import Census
from later.daemon.pace import AT_ONCE, PER_S, Pace
from later.metrics import Metrics
from tests.builders import a_task
from tests.store_fixture import StoreFixture


class Clock:
    """A time (s) that passes while somebody sleeps, and while the store answers."""

    def __init__(self) -> None:
        self.at = 5.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept += seconds


async def count(clock: Clock, slices: int, slice_s: float = 0.0) -> None:
    """Count slices of 500 buckets, each of which takes some time."""
    pace = Pace(clock, clock.sleep)
    for _ in range(slices):
        clock.at += slice_s
        await pace.wait(500)


async def test_few_are_counted_at_once() -> None:
    clock = Clock()
    await count(clock, AT_ONCE // 500)
    assert clock.slept == 0


async def test_many_are_counted_at_a_rate() -> None:
    clock = Clock()
    await count(clock, 2000, slice_s=0.001)
    assert clock.slept + 2 == pytest.approx((1_000_000 - AT_ONCE) / PER_S, rel=0.01)


async def test_a_store_that_answers_more_slowly_is_not_waited_for() -> None:
    clock = Clock()
    await count(clock, 200, slice_s=500 / PER_S + 0.01)
    assert clock.slept == 0


async def test_a_store_that_hung_is_not_counted_the_faster_afterwards() -> None:
    clock = Clock()
    paced, times = Pace(clock, clock.sleep), list[float]()
    for number in range(1000):
        clock.at += 0.5 if number == 500 else 0.002  # the store hung for a while
        await paced.wait(500)
        times.append(clock.at)
    paced_times = times[AT_ONCE // 500 :]
    tens = zip(paced_times, paced_times[10:], strict=False)
    assert min(later - earlier for earlier, later in tens) > 0.99 * (10 * 500 / PER_S)


async def test_a_census_keeps_the_pace(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(700)])
    monkeypatch.setattr(pace, "AT_ONCE", 100)
    monkeypatch.setattr(pace, "PER_S", 2000)
    snapshot = await Census(store, Metrics()).count()
    assert snapshot.total.topics == 700
    assert snapshot.took_ms >= 290
