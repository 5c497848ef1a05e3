"""A tick of the delay ticker reads few wake entries, and still finds the topics that it may claim from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.store.scripts import MAX_TOPICS
from later.store.tasks import Tasks
from later.store.types import ClaimRequest, WorkerSnapshot
from later.worker.claimer import CLAIMS_AT_ONCE, split_by_topic
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

    async def count(
        tasks: Tasks, limit: int, *, held: bool = True, shards: Sequence[int] | None = None
    ) -> WorkerSnapshot:
        snapshot = await read(tasks, limit, held=held, shards=shards)
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


async def test_deliveries_of_the_first_hundred_topics_begin_while_others_are_claimed(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, claim, sizes = FakeSender(), Tasks.claim, list[int]()

    async def claim_in_turn(tasks: Tasks, requests: Sequence[ClaimRequest], *arguments: Any) -> Any:
        sizes.append(len(requests))
        if len(sizes) > 1:
            await asyncio.wait_for(sender.called.wait(), 60)
        return await claim(tasks, requests, *arguments)

    monkeypatch.setattr(Tasks, "claim", claim_in_turn)
    worker = ManualWorker(store, sender)
    await create_topics(store, MAX_TOPICS + 50)
    assert await worker.work() == MAX_TOPICS + 50
    assert sizes == [MAX_TOPICS, 50]


async def test_what_was_claimed_is_delivered_although_the_store_goes_away_during_another_claim(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, claim, calls = FakeSender(), Tasks.claim, list[int]()

    async def fail_once(tasks: Tasks, requests: Sequence[ClaimRequest], *arguments: Any) -> Any:
        calls.append(len(requests))
        if len(calls) == 1:
            raise StoreDown("the store went away", unknown=True)
        return await claim(tasks, requests, *arguments)

    monkeypatch.setattr(Tasks, "claim", fail_once)
    worker = ManualWorker(store, sender)
    await create_topics(store, MAX_TOPICS + 50)
    with pytest.raises(StoreDown):
        await worker.claimer.tick(NOW)
    await worker.deliveries.drain(60)
    assert len(sender.calls) == 50


async def test_two_claims_are_under_way_at_most(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, under_way, most = Tasks.claim, set[int](), [0]

    async def count(tasks: Tasks, requests: Sequence[ClaimRequest], *arguments: Any) -> Any:
        under_way.add(id(requests))
        most.append(len(under_way))
        try:
            return await claim(tasks, requests, *arguments)
        finally:
            under_way.discard(id(requests))

    monkeypatch.setattr(Tasks, "claim", count)
    worker = ManualWorker(store, FakeSender(), slots=512)
    await create_topics(store, 4 * MAX_TOPICS)
    assert await worker.work() == 4 * MAX_TOPICS
    assert max(most) == CLAIMS_AT_ONCE


def test_the_requests_of_a_topic_stay_together() -> None:
    requests = [ClaimRequest(topic, shard, 1) for topic in ("a", "b", "c") for shard in range(2)]
    parts = split_by_topic(requests, 2)
    assert parts == [requests[:4], requests[4:]]
    assert split_by_topic([], 2) == [[]]
