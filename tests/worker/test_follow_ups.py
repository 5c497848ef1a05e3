"""Tasks that end in a worker: the topic that its policy names gets a task for each, however it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import ask, assert_sound, read_contents
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, GONE, FakeSender, ManualWorker

EVENTS = {"on_dead": "events", "on_done": "events"}


async def a_worker(store: StoreFixture, *outcomes: Outcome, **fields: Any) -> ManualWorker:
    """Return a worker of a store in which the ends of tasks of the topic `order` make tasks in `events`."""
    worker = ManualWorker(store, FakeSender(*outcomes))
    await worker.set_policy("events", deliver="pull")
    await worker.set_policy("order", retry_base=0, retry_cap=0, **{**EVENTS, **fields})
    return worker


async def ends(worker: ManualWorker, store: StoreFixture) -> list[tuple[str, str, str | None]]:
    """Return, by the tasks in `events`, which tasks have ended, their states then, and why they died."""
    waiting = (await read_contents(store)).buckets.get((Bucket.DELAY, "events"), {})
    found = list[tuple[str, str, str | None]]()
    for record in await worker.store.lookup.query([*waiting]):
        assert isinstance(record, TaskRecord)
        assert isinstance(record.task, Task)
        content = json.loads(record.task.content)
        found.append((content["id"], content["state"], content["last_error"] and content["last_error"]["reason"]))
    return sorted(found)


@pytest.mark.parametrize(
    ("outcomes", "retry", "end"),
    [
        ([DONE], 3, ("done", None)),
        ([FAILED, DONE], 1, ("done", None)),
        ([GONE], 3, ("dead", "gone")),
        ([FAILED, FAILED], 1, ("dead", "exhausted")),
    ],
)
async def test_each_outcome_that_ends_a_task_makes_one(
    store: StoreFixture, outcomes: Sequence[Outcome], retry: int, end: tuple[str, str | None]
) -> None:
    await store.tasks.create([a_task(id="a", max_retry=retry)])
    worker = await a_worker(store, *outcomes)
    for number in range(len(outcomes)):
        assert await ends(worker, store) == []
        worker.at = NOW + number * 1000
        assert await worker.work() == 1
    assert await ends(worker, store) == [("a", *end)]
    await assert_sound(store, worker.at)


async def test_each_death_without_a_call_makes_one(store: StoreFixture) -> None:
    tasks = [a_task(id="expired", ttl=5), a_task(id="waiting", ttl=5, delay=60), a_task(id="lost")]
    await store.tasks.create([*tasks, a_task(id="body"), a_task(id="uncallable", callback="")])
    await ask(store, [("HSET", store.keys.shard_of("lost").attempts, "lost", "17 5")])  # so many leases were lost
    await ask(store, [("HSET", store.keys.shard_of("body").pool, "body", b"?")])
    worker = await a_worker(store)
    worker.at = NOW + 5000
    await worker.claimer.tick(worker.at)
    await worker.deliveries.drain(60)
    await worker.upkeep.expirer.tick(worker.at)
    assert await ends(worker, store) == [
        ("body", "dead", "body"),
        ("expired", "dead", "expired"),
        ("lost", "dead", "lost"),
        ("uncallable", "dead", "no callback"),
        ("waiting", "dead", "expired"),
    ]
    await assert_sound(store, worker.at)


async def test_a_worker_that_has_just_started_asks_for_the_policies_before_it_ends_tasks(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", delay=60, ttl=5), a_task(id="b")])
    await a_worker(store)
    started = ManualWorker(store, FakeSender(DONE))
    started.at = NOW + 5000
    await started.upkeep.expirer.tick(started.at)
    await started.work()
    assert await ends(started, store) == [("a", "dead", "expired"), ("b", "done", None)]


async def test_it_is_delivered_to_its_topics_callback_and_its_own_end_makes_none(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b")])
    worker = ManualWorker(store, FakeSender(DONE, GONE, DONE, GONE))
    await worker.set_policy("events", callback="http://127.0.0.1:8888/events", on_done="order")
    await worker.set_namespace_policy("default", **EVENTS)
    assert await worker.work() == 2
    worker.at += 1000
    assert await worker.work() == 2
    worker.at += 1000
    assert await worker.work() == 0
    contents = await assert_sound(store, worker.at)
    assert {bucket: len(ids) for bucket, ids in contents.buckets.items()} == {
        (Bucket.DEAD, "order"): 1,
        (Bucket.DEAD, "events"): 1,
    }


async def test_topics_without_the_fields_and_the_topic_that_a_namespace_names_make_none(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", topic="mail"), a_task(id="b", topic="shop/order")])
    await store.tasks.create([a_task(id="c", topic="shop/ends"), a_task(id="d", topic="shop/quiet")])
    worker = await a_worker(store)
    await worker.set_namespace_policy("shop", on_done="shop/ends", deliver="push")
    await worker.set_policy("shop/quiet", on_done="")
    assert await worker.work() == 4
    contents = await assert_sound(store)
    assert {topic: len(ids) for (_, topic), ids in contents.buckets.items()} == {"shop/ends": 1}
