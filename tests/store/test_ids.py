"""Verbs that know only an id: query, delete; and the ids that are remembered for a while."""

from __future__ import annotations

import pytest

from later.core.errors import NotFound, StoreFault, UnreadableBody
from later.core.task import pack_id
from later.store.keys import Bucket
from later.store.types import ClaimRequest, TaskRecord
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import (
    FAILURE,
    LEASE_MS,
    ask,
    assert_sound,
    died,
    done,
    failed,
    let_go,
    place,
    see,
    take,
)  # fmt: skip


async def bring(house: House, bucket: Bucket, id: str = "a") -> None:
    """A task into a bucket; its score there is NOW + 50, or the end of its lease."""
    await house.store.create([a_task(id=id, own_id=True, created_at=NOW + 50)])
    if bucket is Bucket.DELAY:
        return
    [claim] = await take(house, NOW + 50)
    if bucket is Bucket.ERROR:
        await house.store.settle([failed(claim, NOW + 50)])
    if bucket is Bucket.DEAD:
        await house.store.settle([died(claim, NOW + 50)])


async def spoil(house: House, id: str) -> None:
    await ask(house, [("HSET", house.keys.shard_of(id).pool, pack_id(id), b"\xc1")])


def score(bucket: Bucket) -> int:
    return NOW + 50 + (LEASE_MS if bucket is Bucket.UNACK else 0)


@pytest.mark.parametrize("bucket", Bucket)
class TestInEachBucket:
    async def test_a_task_is_found(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        task = a_task(id="a", own_id=True, created_at=NOW + 50)
        attempts = 0 if bucket is Bucket.DELAY else 1
        failure = FAILURE if bucket in (Bucket.ERROR, Bucket.DEAD) else None
        expected = TaskRecord("a", "order", task, bucket, score(bucket), attempts, failure)
        assert await house.store.query(["a"]) == [expected]

    async def test_a_task_whose_body_cannot_be_read_is_found(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        await spoil(house, "a")
        [found] = await house.store.query(["a"])
        assert isinstance(found, TaskRecord)
        assert isinstance(found.task, UnreadableBody)
        assert (found.topic, found.state, found.score) == ("order", bucket, score(bucket))

    async def test_a_task_is_deleted(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        assert await house.store.delete(["a"]) == ["a"]
        assert await place(house, "a") is None
        assert (await assert_sound(house)).wakes == {}

    async def test_a_task_whose_body_cannot_be_read_is_deleted(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        await spoil(house, "a")
        assert await house.store.delete(["a"]) == ["a"]
        assert await place(house, "a") is None
        assert (await assert_sound(house)).wakes == {}

    async def test_a_deleted_id_may_be_created_anew(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        await house.store.delete(["a"])
        assert await house.store.create([a_task(id="a", own_id=True, topic="new", delay=1)]) == [True]
        assert (await see(house)).places("a") == [(Bucket.DELAY, "new", NOW + 1000)]

    async def test_a_task_is_deleted_only_while_it_is_pending(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket)
        [answer] = await house.store.delete_pending(["a"])
        if bucket is Bucket.DEAD:
            assert str(answer) == "the task 'a' is dead: it is not pending"
            assert await place(house, "a") == (Bucket.DEAD, score(bucket))
        else:
            assert answer == "a"
            assert await place(house, "a") is None
        await assert_sound(house)

    async def test_the_others_of_its_topic_stay_and_wake_it(self, house: House, bucket: Bucket) -> None:
        await bring(house, bucket, "a")
        await bring(house, bucket, "b")
        await house.store.delete(["a"])
        shard = house.keys.shard_of("b").index
        assert (await assert_sound(house)).wakes == {(bucket, shard, "order"): score(bucket)}


async def test_what_was_delivered_is_remembered_past_a_delete_of_what_is_pending(house: House) -> None:
    await bring(house, Bucket.DELAY)
    await house.store.settle([done(claim, NOW + 99) for claim in await take(house, NOW + 50)])
    for _ in range(2):
        [answer] = await house.store.delete_pending(["a"])
        assert isinstance(answer, NotFound)
        assert answer.ended
    assert await house.store.create([a_task(id="a", own_id=True)]) == [False]


async def test_what_is_not_there_is_not_found(house: House) -> None:
    [queried], [deleted] = await house.store.query(["a"]), await house.store.delete(["a"])
    assert isinstance(queried, NotFound)
    assert isinstance(deleted, NotFound)
    assert not queried.ended
    assert not deleted.ended


async def test_what_was_delivered_is_said_to_have_ended_until_it_is_deleted(house: House) -> None:
    await bring(house, Bucket.DELAY)
    await house.store.settle([done(claim, NOW + 99) for claim in await take(house, NOW + 50)])
    [queried], [deleted], [again] = [await verb(["a"]) for verb in (house.store.query, house.store.delete) * 2][:3]
    assert isinstance(queried, NotFound)
    assert isinstance(deleted, NotFound)
    assert (queried.ended, deleted.ended) == (True, True)
    assert isinstance(again, NotFound)
    assert not again.ended
    assert await house.store.create([a_task(id="a", own_id=True)]) == [True]


async def test_each_id_has_its_own_answer(house: House) -> None:
    tasks = [a_task(topic=f"topic-{n % 7}") for n in range(600)]
    await house.store.create(tasks)
    ids = [tasks[3].id, "nobody", tasks[5].id, tasks[3].id, *(task.id for task in tasks)]
    answers = await house.store.query(ids)
    assert [getattr(answer, "id", None) for answer in answers] == [None if id == "nobody" else id for id in ids]
    deleted = await house.store.delete(ids)
    once = [None if id == "nobody" or id in ids[:place] else id for place, id in enumerate(ids)]
    assert [id if isinstance(id, str) else None for id in deleted] == once
    assert (await assert_sound(house)).pool == set()


async def test_a_delete_does_not_move_its_topic_to_the_front_of_the_line(house: House) -> None:
    tasks = [a_task() for _ in range(80)]
    await house.store.create(tasks)
    shards = {house.keys.shard_of(task.id).index for task in tasks}
    await house.store.claim([ClaimRequest("order", shard, 1) for shard in shards], NOW + 10, NOW + LEASE_MS)
    waiting = [task.id for task in tasks if (await place(house, task.id)) == (Bucket.DELAY, NOW)]
    await house.store.delete(waiting[:1])
    assert {wake.at for wake in (await house.store.due_topics(Bucket.DELAY, 100)).topics} == {NOW + 10}


async def test_a_task_in_no_bucket_asks_for_the_doctor(house: House) -> None:
    await bring(house, Bucket.DELAY)
    await ask(house, [("DEL", house.keys.shard_of("a").bucket(Bucket.DELAY, b"order"))])
    [answer] = await house.store.query(["a"])
    assert isinstance(answer, StoreFault)
    assert "doctor" in str(answer)


async def test_ids_are_forgotten_when_their_time_has_come(house: House) -> None:
    await house.store.create([a_task(id=f"t{n}", own_id=True) for n in range(40)])
    await house.store.settle([done(claim, NOW + n) for n, claim in enumerate(await take(house))])
    assert await house.store.trim(NOW - 1, 1000) == 0
    assert await house.store.trim(NOW + 9, 1000) == 10
    assert sorted((await see(house)).done.values()) == [NOW + n for n in range(10, 40)]


async def test_no_more_are_forgotten_at_once_than_asked_for(house: House) -> None:
    await house.store.create([a_task(id=f"t{n}", own_id=True) for n in range(100)])
    await house.store.settle([done(claim, NOW) for claim in await take(house)])
    rounds = 0
    while moved := await house.store.trim(NOW, 3):
        assert moved <= 3 * len(house.keys.shards)
        rounds += 1
    assert rounds > 1
    assert await house.census.remembered_ids() == 0


async def test_a_forgotten_id_may_be_created_anew(house: House) -> None:
    await bring(house, Bucket.DELAY)
    await house.store.settle([done(claim, NOW) for claim in await take(house, NOW + 50)])
    await house.store.trim(NOW, 10)
    assert await house.store.create([a_task(id="a", own_id=True)]) == [True]


async def test_release_after_release_loses_nothing(house: House) -> None:
    await bring(house, Bucket.UNACK)
    assert await let_go(house, Bucket.UNACK, score(Bucket.UNACK)) == 1
    assert await let_go(house, Bucket.UNACK, score(Bucket.UNACK)) == 0
    assert await place(house, "a") == (Bucket.DELAY, score(Bucket.UNACK))
