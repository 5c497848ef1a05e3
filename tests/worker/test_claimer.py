"""A tick of the delay ticker reads few wake entries, and still finds the topics that it may claim from."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from later.store.tasks import Tasks
from later.store.types import WorkerSnapshot
from later.worker.dispatcher import STARTS_PER_TURN
from tests.builders import NOW, a_task
from tests.store_fixture import StoreFixture
from tests.worker.workers import FakeSender, ManualWorker


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
def read_entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each snapshot adds how many wake entries of delay it has read."""
    counts: list[int] = []
    read = Tasks.worker_snapshot

    async def count(tasks: Tasks, limit: int, *, held: bool = True) -> WorkerSnapshot:
        snapshot = await read(tasks, limit, held=held)
        counts.append(len(snapshot.delay.topics))
        return snapshot

    monkeypatch.setattr(Tasks, "worker_snapshot", count)
    return counts


async def a_busy_worker(store: StoreFixture, slots: int) -> tuple[ManualWorker, FakeSender]:
    """Return a worker whose deliveries do not end."""
    sender = FakeSender()
    sender.may_answer.clear()
    return ManualWorker(store, sender, slots=slots), sender


async def create_topics(
    store: StoreFixture, count: int, tasks_each: int = 1, name: str = "topic", created_at: int = NOW
) -> None:
    """Create tasks of some topics that are due at once."""
    topics = [f"{name}-{number}" for number in range(count)]
    await store.tasks.create([a_task(topic=topic, created_at=created_at) for topic in topics * tasks_each])


async def test_of_many_due_topics_as_many_entries_are_read_as_slots_are_free(
    store: StoreFixture, read_entries: list[int]
) -> None:
    worker, sender = await a_busy_worker(store, slots=20)
    await create_topics(store, 100)
    await worker.claimer.tick(NOW)
    worker.fair_share.slots += 3
    worker.fair_share.free += 3
    await worker.claimer.tick(NOW + 1)
    await worker.claimer.tick(NOW + 2)
    assert read_entries == [20, 3, 1]
    assert worker.fair_share.total_in_use == 23
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_topics_that_can_take_no_slot_do_not_hide_those_behind_them(
    store: StoreFixture, read_entries: list[int]
) -> None:
    worker, sender = await a_busy_worker(store, slots=40)
    await create_topics(store, 2, tasks_each=50, name="hog")
    await worker.claimer.tick(NOW)
    assert worker.fair_share.free == 7
    await create_topics(store, 100, created_at=NOW + 1)  # behind the hogs, whose next turn is at NOW
    _, next_due = await worker.claimer.tick(NOW + 10)
    assert worker.fair_share.free == 2
    assert next_due == NOW + 11
    await worker.claimer.tick(NOW + 11)
    assert worker.fair_share.free == 0
    assert read_entries == [2, 7, 9]
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_the_deliveries_of_a_claim_begin_a_few_in_each_turn_of_the_event_loop(store: StoreFixture) -> None:
    worker, sender = await a_busy_worker(store, slots=256)
    await create_topics(store, 1, tasks_each=100)
    tick = asyncio.create_task(worker.claimer.tick(NOW))
    calls = [0]
    while not tick.done():
        await asyncio.sleep(0)
        calls.append(len(sender.calls))
    begun = [after - before for before, after in pairwise([*calls, len(sender.calls)])]
    assert max(begun) <= STARTS_PER_TURN
    assert worker.fair_share.total_in_use == 100
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    assert len(sender.calls) == 100
