"""Tasks that die in a worker: with a dead-letter topic they live on there, however they died."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from later.core.clock import Interval
from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket
from later.store.pull_plan import PullRequest, PullResult, PullTopic
from tests.builders import NOW, a_task
from tests.store.inspection import ask, assert_sound
from tests.store.test_cost import commands_of
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, GONE, FakeSender, ManualWorker


async def a_worker(store: StoreFixture, *outcomes: Outcome, dead_ttl: float = 0) -> ManualWorker:
    """Return a worker of a store in which the dead of the topic `order` move to `failed`."""
    worker = ManualWorker(store, FakeSender(*outcomes))
    await worker.set_policy("order", dead_to="failed", dead_ttl=dead_ttl, retry_base=0, retry_cap=0)
    return worker


async def death_of(worker: ManualWorker, task: Task) -> tuple[str, str, int]:
    """Return how a task died that lives on in another topic: its former topic, the reason, after how many attempts."""
    record = await worker.find(task)
    assert isinstance(record.task, Task)
    assert record.task.death is not None
    assert (record.topic, record.state, record.attempts) == ("failed", Bucket.DELAY, 0)
    return record.task.death.topic, record.task.death.reason, record.task.death.attempts


def deaths(worker: ManualWorker, topic: str, reason: str) -> float | None:
    return worker.metrics.registry.get_sample_value("later_topic_dead_total", {"topic": topic, "reason": reason})


@pytest.mark.parametrize(
    ("outcomes", "retry", "reason"),
    [([GONE], 3, "gone"), ([FAILED], 0, "exhausted"), ([FAILED, FAILED], 1, "exhausted")],
)
async def test_a_receiver_that_gives_up_a_task_or_fails_for_the_last_time_moves_it(
    store: StoreFixture, outcomes: Sequence[Outcome], retry: int, reason: str
) -> None:
    task = a_task(max_retry=retry)
    await store.tasks.create([task])
    worker = await a_worker(store, *outcomes)
    for number in range(len(outcomes)):
        worker.at = NOW + number * 1000
        assert await worker.work() == 1
    assert await death_of(worker, task) == ("order", reason, len(outcomes))
    assert deaths(worker, "order", reason) == 1
    await assert_sound(store, worker.at)


async def test_in_a_pushed_dead_letter_topic_it_is_delivered_with_all_its_retries(store: StoreFixture) -> None:
    task = a_task(max_retry=1, own_id=True)
    await store.tasks.create([task])
    worker = await a_worker(store, GONE, FAILED, DONE)
    await worker.set_policy("failed", retry_base=0, retry_cap=0)
    assert isinstance(worker.deliveries._sender, FakeSender)
    for number in range(3):
        worker.at = NOW + number * 1000
        await worker.work()
    assert [call.attempt for call in worker.deliveries._sender.calls] == [1, 1, 2]
    contents = await assert_sound(store, worker.at)
    assert (contents.pool, set(contents.done)) == (set(), {task.id})


async def test_a_ttl_that_ends_moves_a_task_wherever_it_waits(store: StoreFixture) -> None:
    waiting, failing = a_task(delay=60, ttl=5), a_task(ttl=5)
    await store.tasks.create([waiting, failing])
    worker = await a_worker(store, FAILED, dead_ttl=5)
    await worker.set_policy("order", retry_base=60, retry_cap=60)
    await worker.work()
    worker.at = NOW + 5000
    await worker.upkeep.expirer.tick(worker.at)
    assert await death_of(worker, waiting) == ("order", "expired", 0)
    assert await death_of(worker, failing) == ("order", "expired", 1)
    assert deaths(worker, "order", "expired") == 2
    worker.at += 5000
    await worker.upkeep.expirer.tick(worker.at)
    assert [(await worker.find(task)).state for task in (waiting, failing)] == [Bucket.DEAD] * 2
    assert deaths(worker, "failed", "expired") == 2
    await assert_sound(store, worker.at)


async def test_a_worker_that_has_just_started_asks_for_the_policies_before_it_lets_tasks_expire(
    store: StoreFixture,
) -> None:
    task = a_task(delay=60, ttl=5)
    await store.tasks.create([task])
    await a_worker(store)
    started = ManualWorker(store, FakeSender())
    started.at = NOW + 5000
    await started.upkeep.expirer.tick(started.at)
    assert await death_of(started, task) == ("order", "expired", 0)


async def test_a_task_that_expires_while_due_moves_when_it_is_claimed(store: StoreFixture) -> None:
    task = a_task(ttl=5)
    await store.tasks.create([task])
    worker = await a_worker(store)
    worker.at = NOW + 5000
    await worker.claimer.tick(worker.at)
    await worker.deliveries.drain(60)
    assert await death_of(worker, task) == ("order", "expired", 1)


async def test_a_task_that_kills_its_workers_moves(store: StoreFixture) -> None:
    task = a_task(id="a")
    await store.tasks.create([task])
    await ask(store, [("HSET", store.keys.shard_of("a").attempts, "a", "17 5")])  # so many leases were lost
    worker = await a_worker(store)
    assert await worker.work() == 1
    assert await death_of(worker, task) == ("order", "lost", 18)


async def test_a_task_without_a_callback_moves_out_of_a_pushed_topic_and_is_dead_in_another_one(
    store: StoreFixture,
) -> None:
    task = a_task(callback="")
    await store.tasks.create([task])
    worker = await a_worker(store)
    await worker.work()
    assert await death_of(worker, task) == ("order", "no callback", 1)
    worker.at += 1000
    await worker.work()
    record = await worker.find(task)
    assert (record.topic, record.state) == ("failed", Bucket.DEAD)
    assert record.failure is not None
    assert record.failure.reason == "no callback"
    assert (deaths(worker, "order", "no callback"), deaths(worker, "failed", "no callback")) == (1, 1)


async def test_consumers_of_a_pulled_dead_letter_topic_get_tasks_that_have_a_callback(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = await a_worker(store, GONE)
    await worker.set_policy("failed", deliver="pull")
    await worker.work()
    worker.at += 1000
    assert await worker.work() == 0
    at = Interval(worker.at, worker.at)
    [result] = await store.pulls.claim([PullRequest([PullTopic("failed", 9, 1000)], 9)], at)
    assert isinstance(result, PullResult)
    assert [pulled.task.callback for pulled in result.tasks] == [task.callback]


async def test_a_chain_of_topics_is_passed_once(store: StoreFixture) -> None:
    task = a_task(max_retry=0)
    await store.tasks.create([task])
    worker = await a_worker(store, GONE, FAILED, GONE)
    await worker.set_policy("failed", dead_to="lost")
    for _ in range(5):
        worker.at += 1000
        await worker.work()
    record = await worker.find(task)
    assert (record.topic, record.state) == ("lost", Bucket.DEAD)
    assert isinstance(record.task, Task)
    assert (record.task.death and record.task.death.topic) == "failed"
    await assert_sound(store, worker.at)


async def test_a_task_that_cannot_be_read_stays_dead_where_it_is(store: StoreFixture) -> None:
    task = a_task(id="a")
    await store.tasks.create([task])
    await ask(store, [("HSET", store.keys.shard_of("a").pool, "a", b"?")])
    worker = await a_worker(store)
    await worker.work()
    record = await worker.find(task)
    assert (record.topic, record.state) == ("order", Bucket.DEAD)


async def test_without_a_dead_letter_topic_all_is_as_before(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = await a_worker(store, GONE)
    await worker.set_policy("order", dead_to=None)
    await worker.work()
    record = await worker.find(task)
    assert (record.topic, record.state) == ("order", Bucket.DEAD)


@pytest.mark.parametrize("shards", [1])
async def test_the_dead_letter_topic_of_another_topic_costs_a_topic_nothing(store: StoreFixture) -> None:
    """The same tasks take the same commands: create, claim, settle, and the ticks of a worker."""
    worker = ManualWorker(store, FakeSender())
    counts = []
    for number in range(3):  # the first one reads what each process reads once
        await worker.set_policy("other", dead_to="failed" if number == 2 else None, retry=number)
        await worker.policies.read()
        await store.tasks.create([a_task(topic="order", id=f"{number}-{n}") for n in range(50)])
        counts.append(await commands_of(store, worker.work))
    assert counts[1] == counts[2]
