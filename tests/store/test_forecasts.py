"""The counts of forecasts: by steps, over shards and buckets, with bounded work in each script call."""

from __future__ import annotations

import pytest

from later.core.forecast import ForecastWindow, WaitingTasks
from later.store.forecasts import MAX_COUNTS, MAX_TRIP_COUNTS
from later.store.keys import Bucket
from tests.builders import NOW, a_task
from tests.round_trips import count_round_trips
from tests.store.test_cost import commands_of
from tests.store_fixture import StoreFixture

STEP_MS = 300_000
START = NOW - NOW % STEP_MS


def window_of(hours: int = 1, step_s: int = 300) -> ForecastWindow:
    return ForecastWindow.of(NOW, hours=hours, step_s=step_s)


def counts(steps: int = 12, **of_steps: int) -> list[int]:
    return [of_steps.get(f"s{step}", 0) for step in range(steps)]


async def test_tasks_are_counted_in_the_step_in_which_they_are_due(store: StoreFixture) -> None:
    times = [NOW - 1, NOW, NOW + 1, START + STEP_MS - 1, START + STEP_MS, START + 2 * STEP_MS, START + 12 * STEP_MS]
    await store.tasks.create([a_task(id=f"t{number}", execute_at=at) for number, at in enumerate(times)])
    found = await store.forecasts.read(["order", "none"], window_of())
    assert found["order"] == WaitingTasks(2, counts(s0=2, s1=1, s2=1))
    assert found["none"] == WaitingTasks(0, counts())


async def test_tasks_between_two_attempts_are_counted_and_those_of_other_states_not(store: StoreFixture) -> None:
    shard = store.keys.shards[0]
    for bucket in Bucket:
        await store.redis.zadd(shard.bucket(bucket, b"order"), {bucket.value: START + STEP_MS, "due": NOW - 5})
    assert (await store.forecasts.read(["order"], window_of()))["order"] == WaitingTasks(2, counts(s1=2))


async def test_a_forecast_agrees_with_counting_each_task(store: StoreFixture) -> None:
    window = window_of()
    times = [NOW - 10_000 + 13_577 * number**2 % 4_000_000 for number in range(300)]
    await store.tasks.create([a_task(id=f"t{number}", execute_at=at) for number, at in enumerate(times)])
    expected = [0] * window.steps
    for at in times:
        if NOW < at < window.ends[-1]:
            expected[(at - window.start) // STEP_MS] += 1
    found = (await store.forecasts.read(["order"], window))["order"]
    assert found == WaitingTasks(sum(at <= NOW for at in times), expected)


@pytest.mark.one_server
class TestCost:
    @pytest.fixture
    def shards(self) -> int:
        return 1

    async def test_a_topic_costs_a_count_for_each_step_at_most(self, store: StoreFixture) -> None:
        """The bucket is as dense as it can be: each step has tasks of its own."""
        window = window_of(hours=6)
        due = {f"t{number}": NOW + number * 1000 for number in range(6 * 3600)}
        await store.redis.zadd(store.keys.shards[0].bucket(Bucket.DELAY, b"order"), due)
        await store.forecasts.read(["order"], window)  # loads the script
        spent = await commands_of(store, lambda: store.forecasts.read(["order"], window))
        assert spent == {"evalsha": 1, "zcard": 2, "zcount": window.steps + 1}

    async def test_steps_without_tasks_cost_nothing(self, store: StoreFixture) -> None:
        window = window_of(hours=24)
        await store.tasks.create([a_task(id=f"t{number}", execute_at=START + 9 * STEP_MS) for number in range(100)])
        await store.forecasts.read(["order"], window)
        spent = await commands_of(store, lambda: store.forecasts.read(["order"], window))
        assert spent["zcount"] <= 2 + 9  # both ends, then a binary search over 288 steps

    async def test_a_topic_without_tasks_costs_its_sizes(self, store: StoreFixture) -> None:
        await store.forecasts.read(["order"], window_of())
        spent = await commands_of(store, lambda: store.forecasts.read(["order"], window_of()))
        assert spent == {"evalsha": 1, "zcard": 2}


async def test_the_work_of_a_call_and_of_a_round_trip_is_bounded(store: StoreFixture) -> None:
    topics = [f"t{number}" for number in range(50)]
    for hours, step_s in ((1, 300), (6, 300), (24, 300)):
        window = window_of(hours, step_s)
        await store.forecasts.read(topics, window)  # loads the script
        async with count_round_trips(store) as round_trips:
            found = await store.forecasts.read(topics, window)
        assert list(found) == topics
        work = [
            [buckets * (len(call) - 3 - buckets) for call in trip if (buckets := int(str(call[2])))]
            for trip in round_trips
        ]
        assert max(max(calls) for calls in work) <= MAX_COUNTS
        assert max(sum(calls) for calls in work) <= MAX_TRIP_COUNTS
        assert sum(map(len, work)) * MAX_COUNTS < 2.5 * sum(map(sum, work))  # the calls are not too small either
