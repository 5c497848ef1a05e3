"""A purge removes a topic's tasks and forgets their ids: never those in flight, in short steps, and repeatable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task
from later.store.dead_letters import PURGEABLE
from later.store.keys import Bucket
from later.store.scripts import BY_SHA, MAX_TASKS
from later.store.types import BucketRange, Claim, MoveResult, Settlement
from tests.builders import NOW, a_task
from tests.cut_connection import CutConnection
from tests.store.inspection import StoreContents, ask, assert_sound, claim_due, died, done, failed, read_contents
from tests.store_fixture import StoreFixture, hold_topic

ALL = [BucketRange("order", bucket) for bucket in PURGEABLE]
DEAD = BucketRange("order", Bucket.DEAD)


async def create_in_all_buckets(store: StoreFixture, each: int = 10, **changes: Any) -> dict[Bucket, list[Task]]:
    """Create tasks in all four buckets; return them."""
    tasks = {bucket: [a_task(delay=bucket is Bucket.DELAY, **changes) for _ in range(each)] for bucket in Bucket}
    for some in tasks.values():
        await store.tasks.create(some)
    claims = {claim.id: claim for claim in await claim_due(store)}
    await store.tasks.settle([failed(claims[task.id], NOW + 5000) for task in tasks[Bucket.ERROR]])
    await store.tasks.settle([died(claims[task.id]) for task in tasks[Bucket.DEAD]])
    return tasks


def ids_of(tasks: list[Task]) -> set[str]:
    return {task.id for task in tasks}


def is_empty(contents: StoreContents) -> bool:
    return not any(
        (
            contents.pool,
            contents.buckets,
            contents.wakes,
            contents.attempts,
            contents.outcome,
            contents.done,
            contents.expiry,
        )
    )


async def test_an_empty_topic_is_purged_of_nothing(store: StoreFixture) -> None:
    assert await store.dead_letters.purge(ALL) == MoveResult(0, more=False)


async def test_all_tasks_but_those_in_flight_are_removed(store: StoreFixture) -> None:
    tasks = await create_in_all_buckets(store, ttl=60)
    others = await create_in_all_buckets(store, topic="mail")
    assert await store.dead_letters.purge(ALL) == MoveResult(30, more=False)
    contents = await assert_sound(store, NOW)
    left = [*tasks[Bucket.UNACK], *(task for some in others.values() for task in some)]
    assert contents.pool == ids_of(left)
    assert {id for _, id in contents.expiry} == ids_of(tasks[Bucket.UNACK])


@pytest.mark.parametrize("bucket", PURGEABLE)
async def test_only_the_named_buckets_are_purged(store: StoreFixture, bucket: Bucket) -> None:
    tasks = await create_in_all_buckets(store)
    assert await store.dead_letters.purge([BucketRange("order", bucket)]) == MoveResult(10, more=False)
    assert (await assert_sound(store)).pool == {
        id for other in Bucket if other is not bucket for id in ids_of(tasks[other])
    }


async def test_nothing_is_left_of_purged_tasks_and_their_ids_are_forgotten(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=id, own_id=True, ttl=60, delay=1) for id in "abc"])
    await store.dead_letters.purge(ALL)
    assert is_empty(await read_contents(store))
    assert await store.tasks.create([a_task(id="a", own_id=True)]) == [True]


async def test_an_id_that_ended_stays_remembered(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    await store.tasks.settle([done(claim, NOW + 1000) for claim in await claim_due(store)])
    await store.dead_letters.purge(ALL)
    assert (await read_contents(store)).done == {"a": NOW + 1000}


async def test_a_task_in_flight_can_still_be_settled(store: StoreFixture) -> None:
    await store.tasks.create([a_task()])
    [claim] = await claim_due(store)
    await store.dead_letters.purge(ALL)
    assert await store.tasks.settle([done(claim)]) == [True]


async def test_a_topic_that_is_held_stays_held(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", delay=1), a_task(id="b", delay=1)])
    await hold_topic(store, "order", NOW + 99_000)
    await store.dead_letters.purge(ALL, limit=1)
    assert {*(await read_contents(store)).wakes.values()} == {-(NOW + 99_000)}


class TestLimit:
    @pytest.mark.parametrize("limit", [1, 499, 500, 501, 1100])
    async def test_no_more_tasks_than_the_limit_are_purged(self, store: StoreFixture, limit: int) -> None:
        await store.tasks.create([a_task(delay=1) for _ in range(1101)])
        assert await store.dead_letters.purge(ALL, limit) == MoveResult(limit, more=True)
        assert len((await assert_sound(store)).pool) == 1101 - limit

    async def test_a_limit_that_stops_nothing_is_not_reported(self, store: StoreFixture) -> None:
        await create_in_all_buckets(store)
        assert await store.dead_letters.purge(ALL, 30) == MoveResult(30, more=False)


class TestDead:
    async def test_a_range_of_times_of_death_is_purged(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=f"n{n}") for n in range(10)])
        claims = {claim.id: claim for claim in await claim_due(store)}
        await store.tasks.settle([died(claims[f"n{n}"], NOW + n) for n in range(10)])
        assert await store.dead_letters.purge([DEAD._replace(since=NOW + 2, before=NOW + 5)]) == MoveResult(
            3, more=False
        )
        assert (await assert_sound(store, NOW + 9)).pool == {f"n{n}" for n in (0, 1, 5, 6, 7, 8, 9)}

    async def test_only_tasks_that_died_for_the_reason_are_purged(self, store: StoreFixture) -> None:
        await self.create_dead(store, "gone", 600)
        await self.create_dead(store, "status", 600)
        result = await store.dead_letters.purge_dead(DEAD, "gone", 599)
        assert (result.moved, result.more) == (599, True)
        assert await store.dead_letters.purge_dead(DEAD, "gone") == MoveResult(1, more=False)
        assert len((await assert_sound(store)).pool) == 600

    async def test_ids_are_forgotten(self, store: StoreFixture) -> None:
        await self.create_dead(store, "gone", 1, id="a", own_id=True)
        await store.dead_letters.purge_dead(DEAD, "gone")
        assert is_empty(await read_contents(store))

    async def create_dead(self, store: StoreFixture, reason: str, count: int, **changes: Any) -> None:
        await store.tasks.create([a_task(**changes) for _ in range(count)])
        failure = Failure(1, reason, 500, "answered 500", NOW, None, 1)
        while claims := await claim_due(store):
            await store.tasks.settle(
                [Settlement(claim, Verdict(SettleTarget.DEAD, NOW, failure), None) for claim in claims]
            )


async def test_each_script_removes_a_limited_number_and_they_run_one_after_the_other(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.tasks.create([a_task(delay=1) for _ in range(1200)])
    original, round_trips = store.client.execute_each, list[list[Any]]()

    async def record(verb: str, commands: Any) -> Any:
        round_trips.append([command[-1] for command in commands])
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", record)
    await store.dead_letters.purge(ALL)
    assert all(round_trip == [MAX_TASKS] for round_trip in round_trips)


async def test_a_full_store_is_purged(store: StoreFixture) -> None:
    await create_in_all_buckets(store, ttl=60)
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        assert await store.dead_letters.purge(ALL) == MoveResult(30, more=False)
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


async def test_in_a_race_with_claims_each_task_is_either_claimed_or_purged(store: StoreFixture) -> None:
    tasks = [a_task() for _ in range(3000)]
    await store.tasks.create(tasks)
    claims: list[Claim] = []

    async def worker() -> None:
        while some := await claim_due(store, limit=20):
            claims.extend(some)

    moved, _ = await asyncio.gather(store.dead_letters.purge(ALL), worker())
    assert moved.moved + len(claims) == 3000
    assert (await assert_sound(store)).pool == {claim.id for claim in claims}
    assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * len(claims)


@pytest.mark.one_server
@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
@pytest.mark.parametrize("reason", [None, "status"])
async def test_a_purge_that_is_cut_anywhere_is_completed_by_the_next(
    store: StoreFixture, shards: int, monkeypatch: pytest.MonkeyPatch, answer_lost: bool, reason: str | None
) -> None:
    """Cut at each step; in the purge of three buckets of many shards at some, which are in all three."""
    step = min(7, shards - 1) if reason is None and shards > 1 else 1
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])

    async def purge() -> MoveResult:
        return await (store.dead_letters.purge(ALL) if reason is None else store.dead_letters.purge_dead(DEAD, reason))

    cut_at = 0
    while True:
        await store.redis.flushdb()
        tasks = await create_in_all_buckets(store, each=30, ttl=60)
        connection = CutConnection(monkeypatch)
        connection.cut_at, connection.answer_lost = cut_at, answer_lost
        try:
            await purge()
            monkeypatch.undo()
            break
        except StoreDown:
            monkeypatch.undo()
        before = len((await assert_sound(store)).pool)
        again = await purge()
        contents = await assert_sound(store)
        assert len(contents.pool) == before - again.moved
        assert contents.pool == {
            id for bucket in Bucket if not is_purged(bucket, reason) for id in ids_of(tasks[bucket])
        }
        cut_at += step
    assert cut_at >= 3


def is_purged(bucket: Bucket, reason: str | None) -> bool:
    return bucket is Bucket.DEAD or (reason is None and bucket in PURGEABLE)
