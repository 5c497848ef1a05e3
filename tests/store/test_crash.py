"""A worker crashes, or its connection is cut, between any two steps of a task's life: nothing is lost.

`CutConnection` fails in one round trip: before it is sent, or after the store has run it and before its answer is read.
"""

from __future__ import annotations

from typing import Any

import pytest

from later.core.errors import StoreDown
from later.core.task import Task
from later.store.doctor import Doctor
from later.store.keys import Bucket
from later.store.scripts import BY_SHA
from later.store.types import ExistingTask
from tests.builders import NOW, a_task
from tests.cut_connection import CutConnection
from tests.store.inspection import LEASE_MS, assert_sound, claim_due, done, failed, findings, release_due
from tests.store_fixture import StoreFixture

TASK = a_task(id="a", own_id=True)
REMEMBER_UNTIL = NOW + 10**9
MUCH_LATER = NOW + 10**7
ROUND_TRIPS = 18
"""The round trips of `run_life`; a test fails if the number is wrong."""


@pytest.fixture
async def connection(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> CutConnection:
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    return CutConnection(monkeypatch)


@pytest.fixture
def shards() -> int:
    """Return a few: one task is in one shard, however many there are."""
    return 2


every_cut = pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])


async def run_life(store: StoreFixture, task: Task) -> None:
    """Run the whole life of a task: created, failed, released, lost, given back, delivered."""
    await store.tasks.create([task])
    [claim] = await claim_due(store)
    await store.tasks.settle([failed(claim, NOW + 10)])
    await release_due(store, Bucket.ERROR, NOW + 10)
    await claim_due(store, NOW + 10)
    after_lease = NOW + 10 + LEASE_MS
    await release_due(store, Bucket.UNACK, after_lease)
    [claim] = await claim_due(store, after_lease)
    await store.tasks.give_back([claim])
    await store.lookup.query([task.id])
    [claim] = await claim_due(store, after_lease)
    await store.tasks.settle([done(claim, REMEMBER_UNTIL)])


async def recover(store: StoreFixture) -> list[Task]:
    """Deliver as workers that start long after; return the delivered tasks."""
    delivered = []
    for bucket in (Bucket.UNACK, Bucket.ERROR):
        await release_due(store, bucket, MUCH_LATER)
    for claim in await claim_due(store, MUCH_LATER):
        assert isinstance(claim.task, Task)
        delivered.append(claim.task)
        assert await store.tasks.settle([done(claim, REMEMBER_UNTIL)]) == [True]
    return delivered


async def test_a_life_without_a_cut_takes_the_expected_round_trips(
    store: StoreFixture, connection: CutConnection
) -> None:
    await run_life(store, TASK)
    assert connection.round_trips == ROUND_TRIPS
    assert await recover(store) == []


@every_cut
@pytest.mark.parametrize("cut_at", range(ROUND_TRIPS))
async def test_a_task_outlives_its_worker(
    store: StoreFixture, connection: CutConnection, cut_at: int, answer_lost: bool
) -> None:
    connection.cut_at, connection.answer_lost = cut_at, answer_lost
    with pytest.raises(StoreDown):
        await run_life(store, TASK)

    contents = await assert_sound(store, MUCH_LATER)
    never_created = cut_at == 0 and not answer_lost
    delivered = TASK.id in contents.done
    assert delivered == (cut_at == ROUND_TRIPS - 1 and answer_lost)
    assert contents.pool == (set() if never_created or delivered else {TASK.id})
    assert await recover(store) == ([] if never_created or delivered else [TASK])
    assert (await assert_sound(store, MUCH_LATER)).pool == set()


@every_cut
async def test_a_create_sent_again_by_its_caller_creates_once(
    store: StoreFixture, connection: CutConnection, answer_lost: bool
) -> None:
    connection.cut_at, connection.answer_lost = 0, answer_lost
    with pytest.raises(StoreDown):
        await store.tasks.create([TASK])
    assert await store.tasks.create([TASK]) == [ExistingTask(TASK.execute_at) if answer_lost else True]
    assert await recover(store) == [TASK]


@every_cut
@pytest.mark.parametrize("settlement", [done, lambda claim: failed(claim, NOW + 10)], ids=["done", "failed"])
async def test_a_settle_may_be_sent_again(
    store: StoreFixture, connection: CutConnection, settlement: Any, answer_lost: bool
) -> None:
    await store.tasks.create([TASK])
    [claim] = await claim_due(store)
    connection.cut_at, connection.answer_lost = connection.round_trips, answer_lost
    with pytest.raises(StoreDown):
        await store.tasks.settle([settlement(claim)])
    assert await store.tasks.settle([settlement(claim)]) == [not answer_lost]
    contents = await assert_sound(store, NOW + 10)
    assert len(contents.pool) == (0 if settlement is done else 1)


@every_cut
async def test_a_delete_may_be_sent_again(store: StoreFixture, connection: CutConnection, answer_lost: bool) -> None:
    await store.tasks.create([TASK])
    connection.cut_at, connection.answer_lost = connection.round_trips + 1, answer_lost
    with pytest.raises(StoreDown):
        await store.edits.delete([TASK.id])
    await store.edits.delete([TASK.id])
    assert (await assert_sound(store)).pool == set()


@every_cut
@pytest.mark.parametrize("cut_after", range(3), ids=["find-buckets", "examine", "repair"])
async def test_an_interrupted_repair_is_completed_by_the_next(
    store: StoreFixture, connection: CutConnection, cut_after: int, answer_lost: bool
) -> None:
    await store.tasks.create([TASK])
    shard = store.keys.shard_of(TASK.id)
    await store.redis.delete(shard.bucket(Bucket.DELAY, b"order"), shard.wakes[Bucket.DELAY])
    [finding] = await findings(store)
    connection.cut_at, connection.answer_lost = connection.round_trips + cut_after, answer_lost
    with pytest.raises(StoreDown):
        await Doctor(store.client, store.keys).repair(finding, NOW)
    for found in await findings(store):
        assert await Doctor(store.client, store.keys).repair(found, NOW)
    assert (await assert_sound(store)).entries_of(TASK.id) == [(Bucket.DELAY, "order", NOW)]
