"""A task is created once, whole, and waits in its topic's delay bucket."""

from __future__ import annotations

from typing import Any

from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import ExistingTask
from tests.builders import NOW, a_task
from tests.store.inspection import assert_sound, claim_due, died, done, locate, read_contents
from tests.store_fixture import StoreFixture


def own(id: str, **changes: Any) -> Task:
    return a_task(id=id, own_id=True, **changes)


async def test_a_created_task_waits_for_its_due_time(store: StoreFixture) -> None:
    task = a_task(delay=15)
    assert await store.tasks.create([task]) == [True]
    assert await locate(store, task.id) == (Bucket.DELAY, NOW + 15_000)
    await assert_sound(store)


async def test_a_task_is_read_back_as_it_was(store: StoreFixture) -> None:
    task = own("order-1", content="grüße\0", headers={"X-A": "b"}, ttl=60)
    await store.tasks.create([task])
    [claim] = await claim_due(store)
    assert claim.task == task


async def test_only_tasks_with_a_ttl_are_in_the_expiry_index(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", delay=15, ttl=10), a_task(id="b", topic="mail"), own("c", ttl=5)])
    assert (await read_contents(store)).expiry == {("order", "a"): NOW + 10_000, ("order", "c"): NOW + 5_000}
    assert await locate(store, "a") == (Bucket.DELAY, NOW + 15_000)


async def test_an_existing_id_is_not_created_again(store: StoreFixture) -> None:
    await store.tasks.create([own("a")])
    before = await read_contents(store)
    assert await store.tasks.create([own("a", topic="other", delay=5)]) == [ExistingTask(NOW)]
    assert await read_contents(store) == before


async def test_of_tasks_of_one_id_in_several_topics_the_first_of_a_batch_is_created(store: StoreFixture) -> None:
    batch = [own("other", topic="a"), own("x", topic="b", delay=1), own("x", topic="a", delay=2), own("y", topic="b")]
    results = await store.tasks.create([*batch, own("y", topic="a", delay=3), own("x", topic="b", delay=4)])
    assert results == [True, True, ExistingTask(NOW + 1000), True, ExistingTask(NOW), ExistingTask(NOW + 1000)]
    await assert_sound(store)


async def test_an_id_is_known_in_every_bucket(store: StoreFixture) -> None:
    await store.tasks.create([own("in-flight"), own("dead")])
    claims = {claim.id: claim for claim in await claim_due(store)}
    await store.tasks.settle([died(claims["dead"])])
    assert await store.tasks.create([own("in-flight"), own("dead")]) == [ExistingTask(NOW + 30_000), ExistingTask(None)]
    await assert_sound(store)


async def test_the_id_of_a_delivered_task_is_remembered(store: StoreFixture) -> None:
    await store.tasks.create([own("a")])
    [claim] = await claim_due(store)
    await store.tasks.settle([done(claim, remember_until=NOW + 1000)])
    before = await read_contents(store)
    assert await store.tasks.create([own("a")]) == [ExistingTask(None)]
    assert await read_contents(store) == before


async def test_an_id_twice_in_one_batch_is_created_once(store: StoreFixture) -> None:
    batch = [own("a"), own("b"), own("a", topic="other"), own("a", delay=9)]
    answers = await store.tasks.create(batch)
    assert [answer is True for answer in answers].count(True) == 2
    assert len((await assert_sound(store)).pool) == 2


async def test_within_a_topic_the_first_of_two_with_one_id_is_created(store: StoreFixture) -> None:
    assert await store.tasks.create([own("a", delay=1), own("a", delay=2)]) == [True, ExistingTask(NOW + 1000)]
    assert await locate(store, "a") == (Bucket.DELAY, NOW + 1000)


async def test_a_topic_wakes_at_its_earliest_task(store: StoreFixture) -> None:
    shard = store.keys.shard_of("a").index
    same_shard = [id for id in map(str, range(1000)) if store.keys.shard_of(id).index == shard][:2]
    wakes = []
    for id, delay in zip(["a", *same_shard], [20, 10, 30], strict=True):
        await store.tasks.create([own(id, delay=delay)])
        wakes.append((await read_contents(store)).wakes[Bucket.DELAY, shard, "order"])
    assert wakes == [NOW + 20_000, NOW + 10_000, NOW + 10_000]


async def test_more_tasks_than_one_call_carries_are_created(store: StoreFixture) -> None:
    tasks = [a_task(delay=n) for n in range(1234)]
    assert await store.tasks.create(tasks) == [True] * 1234
    assert (await assert_sound(store)).pool == {task.id for task in tasks}


async def test_many_topics_are_created_in_one_round_trip(store: StoreFixture) -> None:
    tasks = [own(f"task-{n}", topic=f"topic-{n % 300}") for n in range(900)]
    answers = await store.tasks.create([*tasks, tasks[7]])
    assert answers == [True] * 900 + [ExistingTask(NOW)]
    contents = await assert_sound(store)
    assert all(contents.entries_of(task.id) == [(Bucket.DELAY, task.topic, NOW)] for task in tasks)


async def test_creating_no_tasks_does_nothing(store: StoreFixture) -> None:
    assert await store.tasks.create([]) == []


async def test_a_topic_may_have_any_name(store: StoreFixture) -> None:
    names = ["a:b", "günther/🦔", "*", "[x]?", "{later:0}", "delay:order", "x y", "\\"]
    await store.tasks.create([a_task(topic=name) for name in names])
    assert set(await store.stats.counts(NOW)) == set(names)
    assert sorted(claim.topic for claim in await claim_due(store)) == sorted(names)
    await assert_sound(store)
