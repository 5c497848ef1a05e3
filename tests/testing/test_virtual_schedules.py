"""Schedules on a virtual clock: they fire while it is moved, at their times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from later import Later, Task
from later.core.errors import NotFound, Refused
from later.testing import VirtualClock, virtual_clock

START = datetime(2027, 3, 26, 12, tzinfo=UTC)
"""A Friday, two days before the clocks of Europe are set."""


@pytest.fixture
def tasks() -> Later:
    return Later()


@pytest.fixture
def clock(tasks: Later) -> Iterator[VirtualClock]:
    with virtual_clock(tasks, start=START) as clock:
        yield clock


async def test_a_handler_runs_at_the_times_of_its_schedule(tasks: Later, clock: VirtualClock) -> None:
    seen: list[tuple[Any, Any, str]] = []

    @tasks.every("1h", payload=7)
    async def sync(number: int, task: Task[Any]) -> None:
        assert task.scheduled_at is not None
        seen.append((task.scheduled_at - START, task.lateness, task.id))

    await tasks.apply_schedules()
    await clock.advance("2h59m")
    assert [(hours // timedelta(hours=1), late) for hours, late, _ in seen] == [(n, timedelta()) for n in range(3)]
    assert seen[0][2] == f"s:sync:{int(START.timestamp())}"
    assert clock.done(sync) == [7, 7, 7]
    assert [delivery.at for delivery in clock.deliveries(sync)] == [START + timedelta(hours=n) for n in range(3)]


async def test_a_pulled_handler_has_the_time_of_its_schedule_too(tasks: Later, clock: VirtualClock) -> None:
    seen: list[Any] = []

    @tasks.every(60)
    async def sync(task: Task[Any]) -> None:
        seen.append(task.scheduled_at)

    clock.policy(sync, deliver="pull")
    await tasks.apply_schedules()
    await clock.advance(60)
    assert seen == [START, START + timedelta(minutes=1)]


async def test_a_cron_schedule_follows_the_clocks_of_its_zone(tasks: Later, clock: VirtualClock) -> None:
    pytest.importorskip("cronsim", reason="cron expressions need it")

    @tasks.cron("0 9 * * *", zone="Europe/Berlin")
    async def report() -> None: ...

    assert len(await tasks.apply_schedules()) == 4
    assert await tasks.apply_schedules() == []
    await clock.advance("3d")
    assert [delivery.at.hour for delivery in clock.deliveries(report)] == [8, 7, 7]


async def test_what_was_missed_while_a_schedule_was_paused_fires_as_it_says(tasks: Later, clock: VirtualClock) -> None:
    lateness: list[Any] = []

    @tasks.every("1h")
    async def sync(task: Task[Any]) -> None:
        lateness.append(task.lateness)

    await tasks.apply_schedules()
    await tasks.client.pause_schedule("sync")
    await clock.advance("5h30m")
    assert lateness == []
    await tasks.client.resume_schedule("sync")
    await clock.advance(0)
    assert lateness == [timedelta(minutes=30)]
    info = await tasks.client.schedule("sync")
    assert info.last is not None
    assert (info.last.time, info.next[0]) == (START + timedelta(hours=5), START + timedelta(hours=6))


async def test_schedules_are_listed_replaced_and_deleted(tasks: Later, clock: VirtualClock) -> None:
    for id, topic in (("b", "shop/x"), ("a", "shop/x"), ("c", "mail")):
        await tasks.client.put_schedule(id, topic, every=60, callback="http://a.example/")
    listed = [schedule.id async for schedule in tasks.client.schedules(namespace="shop")]
    assert listed == ["a", "b"]
    assert [len(schedule.next) async for schedule in tasks.client.schedules()] == [1, 1, 1]
    assert (await tasks.client.put_schedule("a", "shop/x", every=30, callback="http://a.example/")).created is False
    assert await tasks.client.delete_schedule("a") == "a"
    for call in (tasks.client.schedule, tasks.client.delete_schedule, tasks.client.run_schedule_now):
        with pytest.raises(NotFound, match="no schedule has the id 'a'"):
            await call("a")
    with pytest.raises(Refused, match="cron: expected either cron or every, got neither"):
        await tasks.client.put_schedule("a", "shop/x", callback="http://a.example/")


async def test_a_firing_that_its_topic_refuses_is_kept_as_the_last_error(tasks: Later, clock: VirtualClock) -> None:
    @tasks.every("1h")
    async def sync() -> None: ...

    await tasks.apply_schedules()
    clock.policy("sync", deliver="pull")
    await clock.advance("90m")
    info = await tasks.client.schedule("sync")
    assert (clock.delivered(sync), info.last) == ([], None)
    assert info.last_error is not None
    assert info.last_error.message.startswith("callback: expected none")
    assert info.last_error.time == START + timedelta(hours=1)


def test_a_thread_without_a_loop_moves_the_clock_of_schedules_too(tasks: Later, clock: VirtualClock) -> None:
    @tasks.every(60)
    def sync() -> None: ...

    tasks.apply_schedules_sync()
    clock.advance_sync("2m")
    assert len(clock.done(sync)) == 3
