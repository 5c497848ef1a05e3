"""Ticks while shards are away: what the others hold goes on, and no tick fails, or is repeated at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from later.core.caller import ANYBODY
from later.core.schedule import ScheduleDraft, build_schedule
from later.core.task import Task
from later.store.keys import Bucket
from later.worker.throttle import MAX_POLL_MS
from tests.builders import NOW, a_task
from tests.store.away import policies_away, shards_away, tags_away
from tests.store.inspection import claim_due, died, locate
from tests.store_fixture import StoreFixture
from tests.worker.workers import FAILED, FakeSender, ManualWorker

SHARDS = 4


@pytest.fixture
def shards() -> int:
    """Return a few: tests/store shows what depends on their number."""
    return SHARDS


async def create_in_each_shard(store: StoreFixture, **changes: Any) -> list[Task]:
    """Create a task in each shard, in their order."""
    ids = (f"id-{n}" for n in itertools.count())
    found: dict[int, str] = {}
    while len(found) < SHARDS:
        found.setdefault(store.keys.shard_of(id := next(ids)).index, id)
    tasks = [a_task(id=found[n], own_id=True, **changes) for n in range(SHARDS)]
    assert await store.tasks.create(tasks) == [True] * SHARDS
    return tasks


def delivered(sender: FakeSender) -> set[str]:
    return {call.id for call in sender.calls}


def ids_of(tasks: Sequence[Task]) -> set[str]:
    return {task.id for task in tasks}


async def test_tasks_of_the_other_shards_are_delivered_and_those_of_one_that_is_back(store: StoreFixture) -> None:
    sender = FakeSender()
    worker, (first, *others) = ManualWorker(store, sender), await create_in_each_shard(store)
    with shards_away(store, store.keys.shards[0]):
        await worker.work()
        assert delivered(sender) == ids_of(others)
    await worker.work()
    assert delivered(sender) == ids_of([first, *others])


async def test_a_claim_tick_whose_claims_are_refused_waits_for_its_interval(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards go away between the look and the claims."""
    worker, _ = ManualWorker(store, FakeSender()), await create_in_each_shard(store)
    seen = await store.tasks.worker_snapshot(10), True
    monkeypatch.setattr(worker.claimer, "_read_snapshot", AsyncMock(return_value=seen))
    with shards_away(store, *store.keys.shards[:2]):
        assert await worker.claimer.tick(NOW) == (SHARDS - 2, None)
        await worker.deliveries.drain(60)


async def test_a_settle_is_repeated_until_its_shard_is_back(store: StoreFixture) -> None:
    sender = FakeSender()
    sender.may_answer.clear()
    worker, (first, *_) = ManualWorker(store, sender), await create_in_each_shard(store)
    await worker.tick()
    with shards_away(store, store.keys.shards[0]) as connections:
        sender.may_answer.set()
        await connections.has_refused.wait()
    await worker.deliveries.drain(60)
    assert await worker.is_gone(first)


async def test_leases_and_pauses_end_in_the_other_shards(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender(*[FAILED] * SHARDS))
    tasks = await create_in_each_shard(store)
    await worker.work()
    worker.at += 3_600_000
    with shards_away(store, store.keys.shards[0]):
        moved, next_due = await worker.upkeep.error_requeuer.tick(worker.at)
    assert (moved, next_due) == (SHARDS - 1, None)
    assert [(await locate(store, task.id) or (None,))[0] for task in tasks] == [Bucket.ERROR, *[Bucket.DELAY] * 3]


async def test_ttls_end_in_the_other_shards(store: StoreFixture) -> None:
    worker, _ = ManualWorker(store, FakeSender()), await create_in_each_shard(store, ttl=10, delay=5)
    with shards_away(store, store.keys.shards[0]):
        assert (await worker.upkeep.expirer.tick(NOW + 11_000)).moved == SHARDS - 1


async def test_the_dead_are_removed_in_the_other_shards(store: StoreFixture) -> None:
    worker, _ = ManualWorker(store, FakeSender()), await create_in_each_shard(store)
    await store.tasks.settle([died(claim) for claim in await claim_due(store, NOW)])
    later = NOW + 365 * 86_400_000
    with shards_away(store, store.keys.shards[0]):
        assert (await worker.upkeep.sweeper.tick(later)).moved == SHARDS - 1
        assert not await worker.upkeep.trimmer.tick(later)
    assert (await worker.upkeep.sweeper.tick(later)).moved == 1


async def test_schedules_fire_that_can_and_the_others_when_their_shards_are_back(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender())
    for n in range(20):
        draft = ScheduleDraft(topic="report", callback="http://127.0.0.1:9/", every=60)
        await store.schedules.put(build_schedule(draft, f"s{n}", ANYBODY), NOW)
    fires_at = NOW + 120_000
    with shards_away(store, store.keys.shards[0]):
        while (await worker.firer.tick(fires_at)).moved:
            pass
        made = await store.stats.task_count()
        assert 0 < made < 20
    for at in (fires_at + 1000, fires_at + 2000):  # those that could not be made are looked at again
        while (await worker.firer.tick(at)).moved:
            pass
    assert await store.stats.task_count() == 20


async def test_a_topic_whose_permits_are_away_waits_and_the_others_go_on(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.keys, "permits", lambda topic: b"{%s}:flow" % topic.encode())
    sender = FakeSender()
    worker = ManualWorker(store, sender)
    for topic in ("order", "other"):
        await worker.set_policy(topic, concurrency=10)
    limited, free = await create_in_each_shard(store), [a_task(topic="other")]
    await store.tasks.create(free)
    with tags_away(store.client, [b"{order}"]):
        await worker.work()
        assert delivered(sender) == ids_of(free)
    worker.at += MAX_POLL_MS
    await worker.work()
    assert delivered(sender) == ids_of([*free, *limited])


async def test_deliveries_go_on_while_the_node_of_the_policies_is_away(store: StoreFixture) -> None:
    sender = FakeSender()
    worker, tasks = ManualWorker(store, sender), await create_in_each_shard(store)
    worker.policies.shared_read.grace_s = worker.store.signing.shared_read.grace_s = 30.0
    await worker.policies.read()
    await worker.store.signing.read()
    with policies_away(store), capture_logs():
        worker.at += 20_000
        await worker.work()
    assert delivered(sender) == ids_of(tasks)
