"""The dead of a topic brought back: who is meant, when they are due, and what is left where it is cut in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task, pack_id
from later.store.codec import MAX_BODIES
from later.store.keys import Bucket
from later.store.scripts import BY_SHA
from later.store.types import BucketRange, Claim, DueTopic, MoveResult, Settlement
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import LEASE_MS, ask, assert_sound, died, let_go, see, take
from tests.store.test_crash import Line

THEN = NOW + 1_000_000
DEAD = BucketRange("order", Bucket.DEAD)


async def dead(house: House, count: int, at: int = NOW, reason: str = "status", **changes: Any) -> list[Task]:
    """Tasks that died one ms after the other; in that order."""
    tasks = [a_task(**changes) for _ in range(count)]
    await house.store.create(tasks)
    claims = {claim.id: claim for claim in await take(house)}
    failure = Failure(1, reason, 500, "answered 500", NOW, None, 1)
    await house.store.settle(
        [
            Settlement(claims[task.id], Verdict(SettleTarget.DEAD, at + place, failure), None)
            for place, task in enumerate(tasks)
        ]
    )
    return tasks


async def redrive(house: House, stretch: BucketRange = DEAD, now: int = THEN, **options: Any) -> MoveResult:
    return await house.store.redrive_dead(stretch, now=now, **options)


async def ids_in(house: House, bucket: Bucket, topic: str = "order") -> set[str]:
    return {*(await see(house)).buckets.get((bucket, topic), {})}


def ids_of(tasks: list[Task]) -> set[str]:
    return {task.id for task in tasks}


async def test_where_nobody_died_nobody_comes_back(house: House) -> None:
    assert await redrive(house) == MoveResult(0, more=False)


async def test_all_come_back_due_now_with_nothing_left_of_what_they_failed_of(house: House) -> None:
    tasks = await dead(house, 250)
    others = await dead(house, 3, topic="mail")
    assert await redrive(house) == MoveResult(250, more=False)
    sight = await assert_sound(house, THEN)
    assert sight.buckets[Bucket.DELAY, "order"] == {task.id: THEN for task in tasks}
    assert {*sight.attempts, *sight.outcome} == ids_of(others)
    assert [claim.attempt for claim in await take(house, THEN)] == [1] * 250


async def test_a_ttl_counts_from_now_and_the_creation_stays(house: House) -> None:
    [task] = await dead(house, 1, ttl=60)
    await redrive(house)
    assert (await see(house)).expiry == {("order", task.id): THEN + 60_000}
    [claim] = await take(house, THEN)
    assert isinstance(claim.task, Task)
    assert (claim.task.created_at, claim.task.expires_at) == (NOW, THEN + 60_000)


class TestWhoIsMeant:
    async def test_by_when_they_died(self, house: House) -> None:
        tasks = await dead(house, 10)
        stretch = DEAD._replace(since=NOW + 3, before=NOW + 7)
        assert await redrive(house, stretch) == MoveResult(4, more=False)
        assert await ids_in(house, Bucket.DELAY) == ids_of(tasks[3:7])

    async def test_by_why(self, house: House) -> None:
        mine = await dead(house, 150, reason="gone")
        await dead(house, 150, NOW + 50)
        assert await redrive(house, reason="gone") == MoveResult(150, more=False)
        assert await ids_in(house, Bucket.DELAY) == ids_of(mine)
        assert await redrive(house, reason="gone") == MoveResult(0, more=False)

    async def test_not_who_dies_from_then_on(self, house: House) -> None:
        before = await dead(house, 1, THEN - 1)
        await dead(house, 1, THEN)
        assert await redrive(house, DEAD._replace(before=THEN + 99)) == MoveResult(1, more=False)
        assert await ids_in(house, Bucket.DELAY) == ids_of(before)

    async def test_nobody_is_taken_twice_who_dies_again_meanwhile(self, house: House) -> None:
        """A worker that fails all at once, for as long as there is something."""
        tasks = await dead(house, 400)
        claims: list[Claim] = []

        async def worker() -> None:
            while len(claims) < 400:
                some = await take(house, THEN, limit=30)
                claims.extend(some)
                await house.store.settle([died(claim, THEN) for claim in some])

        moved, _ = await asyncio.gather(redrive(house), worker())
        assert moved == MoveResult(400, more=False)
        assert sorted(claim.id for claim in claims) == sorted(ids_of(tasks))
        assert await ids_in(house, Bucket.DEAD) == ids_of(tasks)
        await assert_sound(house, THEN)

    async def test_a_body_that_cannot_be_read_comes_back_and_one_that_is_not_there_does_not(self, house: House) -> None:
        unreadable, missing, whole = await dead(house, 3)
        pools = [(house.keys.shard_of(task.id).pool, pack_id(task.id)) for task in (unreadable, missing)]
        await ask(house, [("HSET", *pools[0], b"\xc1"), ("HDEL", *pools[1])])
        assert await redrive(house) == MoveResult(2, more=False)
        assert await ids_in(house, Bucket.DELAY) == {unreadable.id, whole.id}


class TestLimit:
    @pytest.mark.parametrize("limit", [1, 99, 100, 101, 250])
    async def test_no_more_than_a_limit_who_died_first_first(self, house: House, limit: int) -> None:
        tasks = await dead(house, 251)
        assert await redrive(house, limit=limit) == MoveResult(limit, more=True)
        assert await ids_in(house, Bucket.DELAY) == ids_of(tasks[:limit])

    async def test_a_limit_that_stops_nobody_is_not_told(self, house: House) -> None:
        await dead(house, 5)
        assert await redrive(house, limit=5) == MoveResult(5, more=False)

    async def test_others_of_another_reason_are_no_more(self, house: House) -> None:
        mine = await dead(house, 5, reason="gone")
        await dead(house, 300)
        assert await redrive(house, reason="gone", limit=3) == MoveResult(3, more=True)
        assert await ids_in(house, Bucket.DELAY) == ids_of(mine[:3])
        assert await redrive(house, reason="gone", limit=2) == MoveResult(2, more=False)


class TestRate:
    async def test_they_are_due_one_after_the_other_over_all_slices_and_shards(self, house: House) -> None:
        tasks = await dead(house, 250)
        await redrive(house, rate=3)
        dues = (await assert_sound(house, THEN)).buckets[Bucket.DELAY, "order"]
        assert [dues[task.id] - THEN for task in tasks] == [place * 1000 // 3 for place in range(250)]

    async def test_a_rate_of_next_to_nothing_stays_within_reach(self, house: House) -> None:
        await dead(house, 3)
        await redrive(house, rate=1e-300)
        assert max((await see(house)).buckets[Bucket.DELAY, "order"].values()) < THEN + 3654 * 86_400_000


async def test_no_more_bodies_are_read_at_once_than_fit_into_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(house, 450)
    whole, reads = house.client.execute_each, list[int]()

    async def counted(verb: str, commands: Any) -> Any:
        pools = {shard.pool for shard in house.keys.shards}
        reads.append(sum(len(c) - 2 for c in commands if c[0] == "HMGET" and c[1] in pools))
        return await whole(verb, commands)

    monkeypatch.setattr(house.client, "execute_each", counted)
    await redrive(house)
    assert max(reads) == MAX_BODIES
    assert sum(reads) == 450


async def test_a_full_store_lets_them_back(house: House) -> None:
    await dead(house, 20, ttl=60)
    await ask(house, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        assert await redrive(house) == MoveResult(20, more=False)
    finally:
        await ask(house, [("CONFIG", "SET", "maxmemory", "0")])


async def test_sweeps_and_redrives_share_the_dead(house: House) -> None:
    tasks = await dead(house, 300)

    async def sweeper() -> int:
        gone = 0
        for shard in house.keys.shards:
            some = await house.ends.dead_tasks(DueTopic(0, "order", shard.index), NOW + 200)
            gone += sum(answer is True for answer in await house.ends.sweep(some, NOW + 200, None))
        return gone

    moved, gone = await asyncio.gather(redrive(house), sweeper())
    claimed = {claim.id for claim in await take(house, THEN)}
    assert (moved.moved + gone, len(claimed)) == (len(tasks), moved.moved)
    await assert_sound(house, THEN)


@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_cut_anywhere_a_second_call_goes_on_with_the_rest(
    house: House, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    """Nothing is lost, nothing comes back twice, though all that came back dies again between the calls."""
    await house.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    cut_at = 0
    while True:
        await house.redis.flushdb()
        tasks = await dead(house, 230, ttl=60)
        line = Line(monkeypatch)
        line.cut_at, line.answer_lost = cut_at, answer_lost
        try:
            await redrive(house)
            monkeypatch.undo()
            break
        except StoreDown:
            monkeypatch.undo()
        await assert_sound(house, THEN)
        back = await take(house, THEN)
        again = await redrive(house, now=THEN + 1)
        assert again.moved == 230 - len(back)
        back += await take(house, THEN + 1)
        assert sorted(claim.id for claim in back) == sorted(ids_of(tasks))
        await let_go(house, Bucket.UNACK, THEN + LEASE_MS + 1)
        assert (await assert_sound(house, THEN + LEASE_MS + 1)).pool == ids_of(tasks)
        cut_at += 1
    assert cut_at >= 9  # three slices, each read, read and written
