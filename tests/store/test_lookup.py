"""Verbs that know only an id: query and delete; and the ids of ended tasks, which are remembered for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from later.core.errors import LaterError, NotFound, StoreFault, UnreadableBody
from later.core.task import pack_id
from later.store.codec import StoredTask
from later.store.keys import Bucket
from later.store.types import ClaimRequest, Deletion, ExistingTask, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import (
    FAILURE,
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
)  # fmt: skip
from tests.store_fixture import StoreFixture


async def create_in(store: StoreFixture, bucket: Bucket, id: str = "a") -> None:
    """Put a task into a bucket; its score there is NOW + 50, or the end of its lease."""
    await store.tasks.create([a_task(id=id, own_id=True, created_at=NOW + 50)])
    if bucket is Bucket.DELAY:
        return
    [claim] = await claim_due(store, NOW + 50)
    if bucket is Bucket.ERROR:
        await store.tasks.settle([failed(claim, NOW + 50)])
    if bucket is Bucket.DEAD:
        await store.tasks.settle([died(claim, NOW + 50)])


async def corrupt_body(store: StoreFixture, id: str) -> None:
    await ask(store, [("HSET", store.keys.shard_of(id).pool, pack_id(id), b"\xc1")])


def score(bucket: Bucket) -> int:
    return NOW + 50 + (LEASE_MS if bucket is Bucket.UNACK else 0)


@pytest.mark.parametrize("bucket", Bucket)
class TestInEachBucket:
    async def test_a_task_is_found(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        task = a_task(id="a", own_id=True, created_at=NOW + 50)
        attempts = 0 if bucket is Bucket.DELAY else 1
        failure = FAILURE if bucket in (Bucket.ERROR, Bucket.DEAD) else None
        expected = TaskRecord("a", "order", task, bucket, score(bucket), attempts, failure)
        [found] = await store.lookup.query(["a"])
        assert isinstance(found, TaskRecord)
        assert (found.fence > 0) is (bucket is Bucket.UNACK)
        assert msgspec.structs.replace(found, fence=0) == expected

    async def test_a_task_whose_body_cannot_be_read_is_found(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        await corrupt_body(store, "a")
        [found] = await store.lookup.query(["a"])
        assert isinstance(found, TaskRecord)
        assert isinstance(found.task, UnreadableBody)
        assert (found.topic, found.state, found.score) == ("order", bucket, score(bucket))

    async def test_a_task_is_deleted(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        assert await store.edits.delete(["a"]) == [Deletion("a", in_flight=bucket is Bucket.UNACK, topic="order")]
        assert await locate(store, "a") is None
        assert (await assert_sound(store)).wakes == {}

    async def test_a_task_whose_body_cannot_be_read_is_deleted(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        await corrupt_body(store, "a")
        assert await store.edits.delete(["a"]) == [Deletion("a", in_flight=bucket is Bucket.UNACK, topic="order")]
        assert await locate(store, "a") is None
        assert (await assert_sound(store)).wakes == {}

    async def test_a_deleted_id_may_be_created_anew(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        await store.edits.delete(["a"])
        assert await store.tasks.create([a_task(id="a", own_id=True, topic="new", delay=1)]) == [True]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "new", NOW + 1000)]

    async def test_a_task_is_deleted_only_while_it_is_pending(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket)
        [answer] = await store.edits.delete_pending(["a"])
        if bucket is Bucket.DEAD:
            assert str(answer) == "the task 'a' is dead: it is not pending"
            assert await locate(store, "a") == (Bucket.DEAD, score(bucket))
        else:
            assert answer == Deletion("a", in_flight=bucket is Bucket.UNACK, topic="order")
            assert await locate(store, "a") is None
        await assert_sound(store)

    async def test_the_others_of_its_topic_stay_and_wake_it(self, store: StoreFixture, bucket: Bucket) -> None:
        await create_in(store, bucket, "a")
        await create_in(store, bucket, "b")
        await store.edits.delete(["a"])
        shard = store.keys.shard_of("b").index
        assert (await assert_sound(store)).wakes == {(bucket, shard, "order"): score(bucket)}


async def test_a_delivered_id_stays_remembered_after_a_delete_of_pending_tasks(store: StoreFixture) -> None:
    await create_in(store, Bucket.DELAY)
    await store.tasks.settle([done(claim, NOW + 99) for claim in await claim_due(store, NOW + 50)])
    for _ in range(2):
        [answer] = await store.edits.delete_pending(["a"])
        assert isinstance(answer, NotFound)
        assert answer.ended
    assert await store.tasks.create([a_task(id="a", own_id=True)]) == [ExistingTask(None)]


async def test_an_unknown_id_is_not_found(store: StoreFixture) -> None:
    [queried], [deleted] = await store.lookup.query(["a"]), await store.edits.delete(["a"])
    assert isinstance(queried, NotFound)
    assert isinstance(deleted, NotFound)
    assert not queried.ended
    assert not deleted.ended


async def test_a_delivered_task_has_ended_until_it_is_deleted(store: StoreFixture) -> None:
    await create_in(store, Bucket.DELAY)
    await store.tasks.settle([done(claim, NOW + 99) for claim in await claim_due(store, NOW + 50)])
    [queried], [deleted], [again] = [await verb(["a"]) for verb in (store.lookup.query, store.edits.delete) * 2][:3]
    assert isinstance(queried, NotFound)
    assert queried.ended
    assert deleted == Deletion("a", ended=True)
    assert isinstance(again, NotFound)
    assert not again.ended
    assert await store.tasks.create([a_task(id="a", own_id=True)]) == [True]


async def test_of_many_deletes_at_once_one_forgets_an_ended_id(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_in(store, Bucket.DELAY)
    await store.tasks.settle([done(claim, NOW + 99) for claim in await claim_due(store, NOW + 50)])
    look, all_have_looked = store.edits._lookup.stored_tasks, asyncio.Barrier(5)

    async def look_together(ids: Sequence[str]) -> dict[str, StoredTask | LaterError]:
        found = await look(ids)
        await all_have_looked.wait()
        return found

    monkeypatch.setattr(store.edits._lookup, "stored_tasks", look_together)
    answers = await asyncio.gather(*(store.edits.delete(["a"]) for _ in range(5)))
    assert sum(answer == [Deletion("a", ended=True)] for answer in answers) == 1
    assert sum(isinstance(answer, NotFound) and not answer.ended for [answer] in answers) == 4


async def test_each_id_has_its_own_answer(store: StoreFixture) -> None:
    tasks = [a_task(topic=f"topic-{n % 7}") for n in range(600)]
    await store.tasks.create(tasks)
    ids = [tasks[3].id, "nobody", tasks[5].id, tasks[3].id, *(task.id for task in tasks)]
    answers = await store.lookup.query(ids)
    assert [getattr(answer, "id", None) for answer in answers] == [None if id == "nobody" else id for id in ids]
    deleted = await store.edits.delete(ids)
    once = [None if id == "nobody" or id in ids[:place] else id for place, id in enumerate(ids)]
    assert [getattr(answer, "id", None) for answer in deleted] == once
    assert (await assert_sound(store)).pool == set()


async def test_a_delete_does_not_move_its_topic_to_the_front_of_the_line(store: StoreFixture) -> None:
    tasks = [a_task() for _ in range(80)]
    await store.tasks.create(tasks)
    shards = {store.keys.shard_of(task.id).index for task in tasks}
    await store.tasks.claim([ClaimRequest("order", shard, 1) for shard in shards], NOW + 10, NOW + LEASE_MS)
    waiting = [task.id for task in tasks if (await locate(store, task.id)) == (Bucket.DELAY, NOW)]
    await store.edits.delete(waiting[:1])
    assert {wake.at for wake in (await store.tasks.due_topics(Bucket.DELAY, 100)).topics} == {NOW + 10}


async def test_a_task_in_no_bucket_is_an_error_that_names_the_doctor(store: StoreFixture) -> None:
    await create_in(store, Bucket.DELAY)
    await ask(store, [("DEL", store.keys.shard_of("a").bucket(Bucket.DELAY, b"order"))])
    [answer] = await store.lookup.query(["a"])
    assert isinstance(answer, StoreFault)
    assert "doctor" in str(answer)


async def test_ids_are_forgotten_when_their_time_has_come(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", own_id=True) for n in range(40)])
    await store.tasks.settle([done(claim, NOW + n) for n, claim in enumerate(await claim_due(store))])
    assert await store.maintenance.trim(NOW - 1, 1000) == 0
    assert await store.maintenance.trim(NOW + 9, 1000) == 10
    assert sorted((await read_contents(store)).done.values()) == [NOW + n for n in range(10, 40)]


async def test_no_more_are_forgotten_at_once_than_asked_for(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", own_id=True) for n in range(100)])
    await store.tasks.settle([done(claim, NOW) for claim in await claim_due(store)])
    rounds = 0
    while moved := await store.maintenance.trim(NOW, 3):
        assert moved <= 3 * len(store.keys.shards)
        rounds += 1
    assert rounds > 1
    assert await store.stats.remembered_ids() == 0


async def test_a_forgotten_id_may_be_created_anew(store: StoreFixture) -> None:
    await create_in(store, Bucket.DELAY)
    await store.tasks.settle([done(claim, NOW) for claim in await claim_due(store, NOW + 50)])
    await store.maintenance.trim(NOW, 10)
    assert await store.tasks.create([a_task(id="a", own_id=True)]) == [True]


async def test_release_after_release_loses_nothing(store: StoreFixture) -> None:
    await create_in(store, Bucket.UNACK)
    assert await release_due(store, Bucket.UNACK, score(Bucket.UNACK)) == 1
    assert await release_due(store, Bucket.UNACK, score(Bucket.UNACK)) == 0
    assert await locate(store, "a") == (Bucket.DELAY, score(Bucket.UNACK))
