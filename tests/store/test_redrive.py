"""A redrive brings a topic's dead tasks back: which ones, when they are due, and what an interruption leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task, pack_id
from later.store import scripts
from later.store.codec import MAX_BODIES
from later.store.keys import Bucket
from later.store.scripts import BY_SHA
from later.store.types import BucketRange, Claim, DueTopic, MoveResult, Settlement
from tests.builders import NOW, a_task
from tests.cut_connection import CutConnection
from tests.store.inspection import LEASE_MS, ask, assert_sound, claim_due, died, read_contents, release_due
from tests.store_fixture import StoreFixture

THEN = NOW + 1_000_000
DEAD = BucketRange("order", Bucket.DEAD)


async def create_dead(
    store: StoreFixture, count: int, at: int = NOW, reason: str = "status", **changes: Any
) -> list[Task]:
    """Create tasks that died one ms after another; return them in that order."""
    tasks = [a_task(**changes) for _ in range(count)]
    await store.tasks.create(tasks)
    claims = {claim.id: claim for claim in await claim_due(store)}
    failure = Failure(1, reason, 500, "answered 500", NOW, None, 1)
    await store.tasks.settle(
        [
            Settlement(claims[task.id], Verdict(SettleTarget.DEAD, at + place, failure), None)
            for place, task in enumerate(tasks)
        ]
    )
    return tasks


async def redrive(store: StoreFixture, dead_range: BucketRange = DEAD, now: int = THEN, **options: Any) -> MoveResult:
    return await store.dead_letters.redrive(dead_range, now=now, **options)


async def ids_in(store: StoreFixture, bucket: Bucket, topic: str = "order") -> set[str]:
    return {*(await read_contents(store)).buckets.get((bucket, topic), {})}


def ids_of(tasks: list[Task]) -> set[str]:
    return {task.id for task in tasks}


async def test_without_dead_tasks_nothing_comes_back(store: StoreFixture) -> None:
    assert await redrive(store) == MoveResult(0, more=False)


async def test_all_come_back_due_now_without_their_attempts_and_failures(store: StoreFixture) -> None:
    tasks = await create_dead(store, 250)
    others = await create_dead(store, 3, topic="mail")
    assert await redrive(store) == MoveResult(250, more=False)
    contents = await assert_sound(store, THEN)
    assert contents.buckets[Bucket.DELAY, "order"] == {task.id: THEN for task in tasks}
    assert {*contents.attempts, *contents.outcome} == ids_of(others)
    assert [claim.attempt for claim in await claim_due(store, THEN)] == [1] * 250


async def test_a_ttl_counts_from_now_and_the_creation_stays(store: StoreFixture) -> None:
    [task] = await create_dead(store, 1, ttl=60)
    await redrive(store)
    assert (await read_contents(store)).expiry == {("order", task.id): THEN + 60_000}
    [claim] = await claim_due(store, THEN)
    assert isinstance(claim.task, Task)
    assert (claim.task.created_at, claim.task.expires_at) == (NOW, THEN + 60_000)


class TestSelection:
    async def test_a_range_of_times_of_death_is_redriven(self, store: StoreFixture) -> None:
        tasks = await create_dead(store, 10)
        dead_range = DEAD._replace(since=NOW + 3, before=NOW + 7)
        assert await redrive(store, dead_range) == MoveResult(4, more=False)
        assert await ids_in(store, Bucket.DELAY) == ids_of(tasks[3:7])

    async def test_only_tasks_that_died_for_the_reason_are_redriven(self, store: StoreFixture) -> None:
        mine = await create_dead(store, 150, reason="gone")
        await create_dead(store, 150, NOW + 50)
        assert await redrive(store, reason="gone") == MoveResult(150, more=False)
        assert await ids_in(store, Bucket.DELAY) == ids_of(mine)
        assert await redrive(store, reason="gone") == MoveResult(0, more=False)

    async def test_tasks_that_die_after_the_start_are_left(self, store: StoreFixture) -> None:
        before = await create_dead(store, 1, THEN - 1)
        await create_dead(store, 1, THEN)
        assert await redrive(store, DEAD._replace(before=THEN + 99)) == MoveResult(1, more=False)
        assert await ids_in(store, Bucket.DELAY) == ids_of(before)

    async def test_a_task_that_dies_again_meanwhile_is_not_moved_twice(self, store: StoreFixture) -> None:
        """Meanwhile a worker fails all tasks at once, as long as there are any."""
        tasks = await create_dead(store, 400)
        claims: list[Claim] = []

        async def worker() -> None:
            while len(claims) < 400:
                some = await claim_due(store, THEN, limit=30)
                claims.extend(some)
                await store.tasks.settle([died(claim, THEN) for claim in some])

        moved, _ = await asyncio.gather(redrive(store), worker())
        assert moved == MoveResult(400, more=False)
        assert sorted(claim.id for claim in claims) == sorted(ids_of(tasks))
        assert await ids_in(store, Bucket.DEAD) == ids_of(tasks)
        await assert_sound(store, THEN)

    async def test_an_unreadable_body_comes_back_and_a_missing_one_does_not(self, store: StoreFixture) -> None:
        unreadable, missing, intact = await create_dead(store, 3)
        pools = [(store.keys.shard_of(task.id).pool, pack_id(task.id)) for task in (unreadable, missing)]
        await ask(store, [("HSET", *pools[0], b"\xc1"), ("HDEL", *pools[1])])
        assert await redrive(store) == MoveResult(2, more=False)
        assert await ids_in(store, Bucket.DELAY) == {unreadable.id, intact.id}


class TestLimit:
    @pytest.mark.parametrize("limit", [1, 99, 100, 101, 250])
    async def test_no_more_tasks_than_the_limit_are_redriven_in_order_of_death(
        self, store: StoreFixture, limit: int
    ) -> None:
        tasks = await create_dead(store, 251)
        assert await redrive(store, limit=limit) == MoveResult(limit, more=True)
        assert await ids_in(store, Bucket.DELAY) == ids_of(tasks[:limit])

    async def test_a_limit_that_stops_nothing_is_not_reported(self, store: StoreFixture) -> None:
        await create_dead(store, 5)
        assert await redrive(store, limit=5) == MoveResult(5, more=False)

    async def test_tasks_that_died_for_another_reason_do_not_count_as_more(self, store: StoreFixture) -> None:
        mine = await create_dead(store, 5, reason="gone")
        await create_dead(store, 300)
        result = await redrive(store, reason="gone", limit=3)
        assert (result.moved, result.more) == (3, True)
        assert await ids_in(store, Bucket.DELAY) == ids_of(mine[:3])
        assert await redrive(store, reason="gone", limit=2) == MoveResult(2, more=False)


class TestRate:
    async def test_tasks_are_due_one_after_the_other_over_all_slices_and_shards(self, store: StoreFixture) -> None:
        tasks = await create_dead(store, 250)
        await redrive(store, rate=3)
        dues = (await assert_sound(store, THEN)).buckets[Bucket.DELAY, "order"]
        assert [dues[task.id] - THEN for task in tasks] == [place * 1000 // 3 for place in range(250)]

    async def test_the_due_times_of_a_very_low_rate_are_limited(self, store: StoreFixture) -> None:
        await create_dead(store, 3)
        await redrive(store, rate=1e-300)
        assert max((await read_contents(store)).buckets[Bucket.DELAY, "order"].values()) < THEN + 3654 * 86_400_000


async def test_no_more_bodies_are_read_at_once_than_fit_into_memory(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_dead(store, 450)
    original, reads = store.client.execute_each, list[int]()

    async def count_bodies(verb: str, commands: Any) -> Any:
        reads.append(sum(len(c) - 5 for c in commands if c[1] == scripts.READ_BODIES.sha))
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", count_bodies)
    await redrive(store)
    assert max(reads) == MAX_BODIES
    assert sum(reads) == 450


async def test_a_full_store_lets_them_back(store: StoreFixture) -> None:
    await create_dead(store, 20, ttl=60)
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        assert await redrive(store) == MoveResult(20, more=False)
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


async def test_sweeps_and_redrives_share_the_dead(store: StoreFixture) -> None:
    tasks = await create_dead(store, 300)

    async def sweeper() -> int:
        removed = 0
        for shard in store.keys.shards:
            some = await store.expiry.dead_tasks(DueTopic(0, "order", shard.index), NOW + 200, NOW, Policy())
            removed += sum(answer is True for answer in await store.expiry.sweep(some, NOW + 200))
        return removed

    moved, removed = await asyncio.gather(redrive(store), sweeper())
    claimed = {claim.id for claim in await claim_due(store, THEN)}
    assert (moved.moved + removed, len(claimed)) == (len(tasks), moved.moved)
    await assert_sound(store, THEN)


@pytest.mark.one_server
@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_a_redrive_that_is_cut_anywhere_is_completed_by_the_next(
    store: StoreFixture, shards: int, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    """Nothing is lost and nothing comes back twice, even if all that came back dies again between the calls.

    Cut at each step on one shard, at every second one on many.
    """
    step = 1 if shards == 1 else 2
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    cut_at = 0
    while True:
        await store.redis.flushdb()
        tasks = await create_dead(store, 230, ttl=60)
        connection = CutConnection(monkeypatch)
        connection.cut_at, connection.answer_lost = cut_at, answer_lost
        try:
            await redrive(store)
            monkeypatch.undo()
            break
        except StoreDown:
            monkeypatch.undo()
        await assert_sound(store, THEN)
        back = await claim_due(store, THEN)
        again = await redrive(store, now=THEN + 1)
        assert again.moved == 230 - len(back)
        back += await claim_due(store, THEN + 1)
        assert sorted(claim.id for claim in back) == sorted(ids_of(tasks))
        await release_due(store, Bucket.UNACK, THEN + LEASE_MS + 1)
        assert (await assert_sound(store, THEN + LEASE_MS + 1)).pool == ids_of(tasks)
        cut_at += step
    assert cut_at >= 9  # three slices, each read, read and written
