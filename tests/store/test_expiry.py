"""Tasks that end without a delivery: their ttl ends while they wait, or they were dead for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from later.core.past_failures import PastFailure
from later.core.policy import Policy
from later.core.retry import Failure, encode_failure, expiry_failure
from later.core.task import Task
from later.store.codec import MAX_BODIES
from later.store.defects import Defect
from later.store.doctor import Doctor
from later.store.keys import Bucket
from later.store.types import DeadTask, DueTopic, ExistingTask
from tests.builders import NOW, a_task
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    locate,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture

END = NOW + 5_000
FAILURE_SINCE = Failure(2, "status", 502, "answered 502", NOW, None, 2)


async def create_waiting_task(store: StoreFixture, **changes: Any) -> Task:
    task = a_task(**{"ttl": 5, "delay": 60, **changes})
    await store.tasks.create([task])
    return task


async def expire(store: StoreFixture, now: int = END) -> list[str]:
    """Let tasks expire as a worker does; return the ids of those that died."""
    found = await store.expiry.expired_tasks(now)
    answers = await store.expiry.expire([(task, expiry_failure(task.failure, now)) for task in found], now)
    return sorted(task.id for task, answer in zip(found, answers, strict=True) if answer is True)


class TestExpiry:
    async def test_a_task_whose_ttl_ends_before_it_is_due_dies_then(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store)
        assert await expire(store, END - 1) == []
        assert await expire(store, END) == [task.id]
        assert await locate(store, task.id) == (Bucket.DEAD, END)
        assert (await assert_sound(store, END)).expiry == {}

    async def test_the_cause_is_stored(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store)
        await expire(store)
        [found] = await store.lookup.query([task.id])
        assert getattr(found, "failure", None) == Failure(
            0, "expired", None, "its ttl ended before it was done", END, None, 0
        )

    async def test_a_pause_between_attempts_lasts_no_longer_than_the_ttl(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store, delay=0)
        [claim] = await claim_due(store)
        await store.tasks.settle([failed(claim, NOW + 60_000)])
        assert await expire(store) == [task.id]
        [found] = await store.lookup.query([task.id])
        before = PastFailure(1, NOW, "status", 500, None, "answered 500")
        assert getattr(found, "failure", None) == Failure(
            1, "expired", 500, "its ttl ended before it was done", END, None, 1, earlier=(before,)
        )
        await assert_sound(store, END)

    async def test_a_due_task_that_is_not_claimed_dies_too(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store, delay=1)
        assert await expire(store) == [task.id]

    async def test_a_task_in_flight_is_left_alone_and_checked_again(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store, delay=0)
        [claim] = await claim_due(store)
        assert await expire(store) == []
        assert await locate(store, task.id) == (Bucket.UNACK, NOW + LEASE_MS)
        assert (await store.expiry.expired_tasks(END + 999), len(await store.expiry.expired_tasks(END + 1000))) == (
            [],
            1,
        )
        assert await store.tasks.settle([done(claim)]) == [True]

    async def test_a_task_whose_lease_was_lost_dies_too(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store, delay=0)
        await claim_due(store)
        await expire(store)
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        assert await expire(store, NOW + LEASE_MS) == [task.id]

    async def test_without_a_ttl_nothing_dies(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task()])
        assert await store.expiry.expired_tasks(NOW + 10**12) == []

    async def test_a_task_that_is_done_or_dead_or_deleted_leaves_the_index(self, store: StoreFixture) -> None:
        tasks = [await create_waiting_task(store, delay=0) for _ in range(3)]
        claims = {claim.id: claim for claim in await claim_due(store)}
        await store.tasks.settle([done(claims[tasks[0].id]), died(claims[tasks[1].id])])
        await store.edits.delete([tasks[2].id])
        assert (await read_contents(store)).expiry == {}

    async def test_an_id_that_was_deleted_and_created_again_has_its_new_ttl(self, store: StoreFixture) -> None:
        await create_waiting_task(store, id="a", own_id=True)
        stale = [(task, expiry_failure(None, END)) for task in await store.expiry.expired_tasks(END)]
        await store.edits.delete(["a"])
        await create_waiting_task(store, id="a", own_id=True, ttl=60)
        assert await store.expiry.expire(stale, END) == [False]
        assert (await read_contents(store)).expiry == {("order", "a"): NOW + 60_000}

    async def test_a_task_that_failed_once_more_in_the_meantime_is_read_again(self, store: StoreFixture) -> None:
        await create_waiting_task(store, delay=0, id="a")
        [claim] = await claim_due(store)
        await store.tasks.settle([failed(claim, NOW)])
        stale = [(task, expiry_failure(task.failure, END)) for task in await store.expiry.expired_tasks(END)]
        await ask(store, [("HSET", store.keys.shard_of("a").outcome, "a", encode_failure(FAILURE_SINCE))])
        assert await store.expiry.expire(stale, END) == [False]
        assert await expire(store) == ["a"]
        [found] = await store.lookup.query(["a"])
        assert getattr(found, "failure", None) == expiry_failure(FAILURE_SINCE, END)

    async def test_an_index_entry_of_a_missing_task_is_removed(self, store: StoreFixture) -> None:
        await ask(store, [("ZADD", store.keys.shards[0].expiry, NOW, b"order\0ghost")])
        assert await expire(store) == []
        assert (await read_contents(store)).expiry == {}

    async def test_a_topic_that_was_served_keeps_its_place_in_line(self, store: StoreFixture) -> None:
        await create_waiting_task(store, delay=0, id="a")
        await store.tasks.create([a_task(id="b", delay=1), a_task(id="c", delay=1)])
        shard = store.keys.shard_of("b").index
        before = (await read_contents(store)).wakes
        await expire(store)
        after = (await read_contents(store)).wakes
        assert after[Bucket.DELAY, shard, "order"] == NOW + 1000
        assert before.keys() <= {*after.keys(), (Bucket.DELAY, store.keys.shard_of("a").index, "order")}

    async def test_many_tasks_expire_a_slice_at_a_time(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"t{n % 7}", ttl=5, delay=60) for n in range(1200)])
        dead_count, rounds = 0, 0
        while some := await expire(store):
            dead_count, rounds = dead_count + len(some), rounds + 1
        assert dead_count == 1200
        assert rounds >= 3 // len(store.keys.shards)
        await assert_sound(store, END)

    async def test_of_two_workers_only_one_lets_it_die(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(ttl=5, delay=60) for _ in range(100)])
        died = await asyncio.gather(expire(store), expire(store))
        assert sorted(map(len, died)) in ([0, 100], sorted([len(died[0]), 100 - len(died[0])]))

    async def test_a_full_store_lets_them_die(self, store: StoreFixture) -> None:
        task = await create_waiting_task(store)
        await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            assert await expire(store) == [task.id]
        finally:
            await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


async def create_dead(store: StoreFixture, count: int, at: int = NOW, **changes: Any) -> list[Task]:
    tasks = [a_task(**changes) for _ in range(count)]
    await store.tasks.create(tasks)
    await store.tasks.settle([died(claim, at) for claim in await claim_due(store)])
    return tasks


FORGETFUL = Policy(remember_ms=0)


async def sweep(store: StoreFixture, latest: int, policy: Policy = FORGETFUL, topic: str = "order") -> int:
    swept = 0
    for shard in store.keys.shards:
        some = await store.expiry.dead_tasks(DueTopic(0, topic, shard.index), latest, NOW, policy)
        swept += sum(answer is True for answer in await store.expiry.sweep(some, latest))
    return swept


class TestSweep:
    async def test_a_dead_task_is_removed_with_its_attempts_and_failures(self, store: StoreFixture) -> None:
        [task] = await create_dead(store, 1)
        assert await sweep(store, NOW - 1) == 0
        assert await sweep(store, NOW) == 1
        assert await locate(store, task.id) is None
        assert (await assert_sound(store)).wakes == {}

    async def test_an_id_that_its_caller_chose_is_remembered(self, store: StoreFixture) -> None:
        await create_dead(store, 1, id="a", own_id=True)
        await create_dead(store, 1, id="b")
        await sweep(store, NOW, Policy(remember_ms=7))
        assert (await read_contents(store)).done == {"a": NOW + 7}
        assert await store.tasks.create([a_task(id="a", own_id=True)]) == [ExistingTask(None)]

    async def test_no_id_is_remembered_if_that_is_turned_off(self, store: StoreFixture) -> None:
        await create_dead(store, 1, id="a", own_id=True)
        await sweep(store, NOW, FORGETFUL)
        assert (await read_contents(store)).done == {}

    async def test_an_id_is_remembered_for_as_long_as_its_task_says(self, store: StoreFixture) -> None:
        await create_dead(store, 1, id="a", own_id=True, remember_ms=3)
        await create_dead(store, 1, id="b", own_id=True, remember_ms=0)
        await sweep(store, NOW, Policy(remember_ms=7))
        assert (await read_contents(store)).done == {"a": NOW + 3}

    async def test_a_task_that_died_later_stays(self, store: StoreFixture) -> None:
        await create_dead(store, 1, NOW, id="a")
        await create_dead(store, 1, NOW + 1, id="b")
        assert await sweep(store, NOW) == 1
        assert (await assert_sound(store)).pool == {"b"}

    async def test_a_task_that_died_again_meanwhile_stays(self, store: StoreFixture) -> None:
        await create_dead(store, 1, id="a", own_id=True)
        seen = [DeadTask("a", "order", store.keys.shard_of("a").index)]
        await store.edits.delete(["a"])
        await create_dead(store, 1, NOW + 1, id="a", own_id=True)
        assert await store.expiry.sweep(seen, NOW) == [False]
        assert await locate(store, "a") == (Bucket.DEAD, NOW + 1)

    async def test_a_task_whose_body_cannot_be_read_is_removed_too(self, store: StoreFixture) -> None:
        [task] = await create_dead(store, 1)
        shard = store.keys.shard_of(task.id)
        await ask(store, [("HSET", shard.pool, next(iter(await store.redis.hkeys(shard.pool.decode()))), b"\xc1")])
        assert await sweep(store, NOW) == 1

    async def test_no_more_bodies_are_read_at_once_than_fit_into_memory(self, store: StoreFixture) -> None:
        await create_dead(store, MAX_BODIES * len(store.keys.shards) * 2)
        read = [
            await store.expiry.dead_tasks(DueTopic(0, "order", shard.index), NOW, NOW, FORGETFUL)
            for shard in store.keys.shards
        ]
        assert max(map(len, read)) == MAX_BODIES

    async def test_a_full_store_can_be_swept(self, store: StoreFixture) -> None:
        await create_dead(store, 1)
        await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            assert await sweep(store, NOW) == 1
        finally:
            await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


class TestTopicsWithDead:
    async def test_all_topics_are_scanned_slice_by_slice(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"t{n}") for n in range(300)])
        await store.tasks.settle([died(claim) for claim in await claim_due(store)])
        seen: set[tuple[str, int]] = set()
        cursors: Mapping[int, int] = {}
        for _ in range(100):
            found, cursors = await store.expiry.topics_with_dead(NOW, 10, cursors)
            seen |= {(entry.topic, entry.shard) for entry in found}
        assert {topic for topic, _ in seen} == {f"t{n}" for n in range(300)}

    async def test_topics_are_not_scanned_if_no_task_died_early_enough(self, store: StoreFixture) -> None:
        await create_dead(store, 1)
        assert await store.expiry.topics_with_dead(NOW - 1, 10) == ([], {})
        assert [entry.topic for entry in (await store.expiry.topics_with_dead(NOW, 10)).topics] == ["order"]


class TestExpiryIndex:
    async def test_the_doctor_finds_a_task_that_is_missing_from_it_and_puts_it_there(self, store: StoreFixture) -> None:
        await create_waiting_task(store, id="a")
        await ask(store, [("DEL", shard.expiry) for shard in store.keys.shards])
        doctor = Doctor(store.client, store.keys)
        [finding] = [finding async for finding in doctor.examine(NOW)]
        assert (finding.kind, finding.id, finding.topic) == (Defect.UNINDEXED, b"a", b"order")
        assert [await doctor.repair(finding, NOW), await doctor.repair(finding, NOW)] == [True, False]
        assert (await assert_sound(store)).expiry == {("order", "a"): END}

    async def test_a_task_that_is_dead_or_was_deleted_since_is_no_finding(self, store: StoreFixture) -> None:
        await create_waiting_task(store, delay=0, id="a")
        [claim] = await claim_due(store)
        await store.tasks.settle([died(claim)])
        await create_waiting_task(store, id="b")
        await ask(store, [("DEL", shard.expiry) for shard in store.keys.shards])
        doctor = Doctor(store.client, store.keys)
        [finding] = [finding async for finding in doctor.examine(NOW)]
        await store.edits.delete(["b"])
        assert (finding.id, await doctor.repair(finding, NOW)) == (b"b", False)
