"""Tasks without a callback of their own: the one of their topic's policy is called, as it is when they are due."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.held import Held
from later.core.origin import Origin
from later.core.policy import Policy
from later.core.policy_scopes import topic_scope
from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket, ItemGroup, ShardTopic
from later.store.types import BucketRange, ClaimRequest, ClaimResult, TaskRecord
from later.worker.dispatcher import MAX_FOLLOW_MS
from tests.builders import NOW, a_task
from tests.store.inspection import assert_sound
from tests.store_fixture import StoreFixture
from tests.worker.workers import FAILED, LEASE_MS, FakeSender, ManualWorker, busy

OLD, NEW, OWN = "http://old.example/hook", "http://new.example/hook", "http://own.example/"


@pytest.fixture
def shards() -> int:
    """Return 4: with one shard, everything is the same with fewer calls."""
    return 4


class UrlSender(FakeSender):
    """A sender that remembers which URL it called for which task."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__(*answers)
        self.urls: list[tuple[str, str]] = []

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        self.urls.append((task.id, task.callback))
        return await super().send(task, attempt, failures, now, policy)


async def a_worker(store: StoreFixture, *answers: Outcome, callback: str = OLD) -> tuple[ManualWorker, UrlSender]:
    """Return a worker, and its sender; the policy of the topic `order` names this callback."""
    sender = UrlSender(*answers)
    worker = ManualWorker(store, sender)
    await worker.set_policy("order", callback=callback, ramp=0)
    return worker, sender


def a_task_without(id: str = "a", **fields: Any) -> Task:
    """Build a task without a callback."""
    return a_task(id=id, callback="", **fields)


def assert_dead_without_callback(record: TaskRecord) -> None:
    assert record.state is Bucket.DEAD
    assert record.failure is not None
    assert record.failure.reason == "no callback"


async def test_pending_tasks_follow_an_application_that_has_moved(store: StoreFixture) -> None:
    worker, sender = await a_worker(store)
    await store.tasks.create([a_task_without("now"), a_task_without("later", delay=60)])
    await worker.work()
    await worker.set_policy("order", callback=NEW)
    worker.at += 61_000
    await worker.work()
    assert sender.urls == [("now", OLD), ("later", NEW)]


async def test_a_tasks_own_callback_comes_before_that_of_its_policy(store: StoreFixture) -> None:
    worker, sender = await a_worker(store)
    await store.tasks.create([a_task(id="own", callback=OWN), a_task_without("policys")])
    await worker.work()
    assert dict(sender.urls) == {"own": OWN, "policys": OLD}


async def test_a_retry_calls_what_the_policy_names_by_then_and_the_body_stays_without_a_callback(
    store: StoreFixture,
) -> None:
    worker, sender = await a_worker(store, FAILED, FAILED)
    task = a_task_without(max_retry=1)
    await store.tasks.create([task])
    await worker.work()
    await worker.set_policy("order", callback=NEW)
    worker.at += 11_000
    await worker.work()
    assert sender.urls == [("a", OLD), ("a", NEW)]
    record = await worker.find(task)
    assert (record.state, record.task) == (Bucket.DEAD, task)


async def test_a_namespaces_callback_is_that_of_its_topics_unless_they_say_otherwise(store: StoreFixture) -> None:
    sender = UrlSender()
    worker = ManualWorker(store, sender)
    await worker.set_namespace_policy("shop", callback=OLD)
    await worker.set_policy("shop/own", callback=NEW)
    await worker.set_policy("shop/none", callback="")
    tasks = [a_task_without(name, topic=f"shop/{name}") for name in ("inherits", "own", "none")]
    await store.tasks.create(tasks)
    await worker.work()
    assert sorted(sender.urls) == [("inherits", OLD), ("own", NEW)]
    assert_dead_without_callback(await worker.find(tasks[2]))


async def test_a_task_is_dead_if_its_policy_has_gone_and_a_redrive_brings_it_to_the_next_one(
    store: StoreFixture,
) -> None:
    worker, sender = await a_worker(store)
    task = a_task_without()
    await store.tasks.create([task])
    await worker.set_policy("order", callback=None)
    await worker.work()
    assert_dead_without_callback(await worker.find(task))
    await worker.set_policy("order", callback=NEW)
    worker.at += 1000
    await store.dead_letters.redrive(BucketRange("order", Bucket.DEAD), now=worker.at)
    worker.at += 1000
    await worker.work()
    assert sender.urls == [("a", NEW)]
    await assert_sound(store)


async def test_a_worker_that_does_not_know_the_callback_yet_makes_the_call_a_tick_later(store: StoreFixture) -> None:
    sender = UrlSender()
    worker = ManualWorker(store, sender)
    await worker.policies.read()
    await store.new_policy_book().change(topic_scope("order"), lambda before: before.merge({"callback": NEW}))
    task = a_task_without()
    await store.tasks.create([task])
    await worker.work()
    record = await worker.find(task)
    assert (record.state, record.score, record.attempts) == (Bucket.DELAY, task.execute_at, 0)
    await worker.work()
    assert sender.urls == [("a", NEW)]
    assert await worker.is_gone(task)


async def test_a_delivery_that_counts_for_another_origin_by_now_is_claimed_again(store: StoreFixture) -> None:
    worker, sender = await a_worker(store)
    task = a_task_without()
    await store.tasks.create([task])
    shard = next(n for n, shard in enumerate(store.keys.shards) if shard == store.keys.shard_of(task.id))
    [result] = await store.tasks.claim([ClaimRequest("order", shard, 1)], NOW, NOW + LEASE_MS)
    assert isinstance(result, ClaimResult)
    await worker.set_policy("order", callback=NEW)
    worker.deliveries.start(result.claims[0], worker.at, Held.NO, Origin.of(OLD))
    await worker.deliveries.drain(60)
    assert (await worker.find(task)).attempts == 0
    await worker.work()
    assert sender.urls == [("a", NEW)]


async def test_tasks_that_wait_for_a_held_receiver_follow_the_policy_to_another_one(store: StoreFixture) -> None:
    worker, sender = await a_worker(store, busy(retry_after_ms=86_400_000))
    await store.tasks.create([a_task_without("asks")])
    await worker.work()
    waiting = [*(a_task_without(str(n)) for n in range(5)), a_task(id="own", callback=OLD)]
    await store.tasks.create(waiting)
    await worker.work()
    assert len(sender.urls) == 1
    await worker.set_policy("order", callback=NEW)
    await worker.work_until(worker.at + MAX_FOLLOW_MS + 1000, step=1000)
    assert sorted(sender.urls[1:]) == [(str(n), NEW) for n in range(5)]
    assert (await worker.find(waiting[-1])).state is Bucket.DELAY
    await assert_sound(store)


async def test_tasks_that_are_looked_at_each_minute_of_a_hold_make_nobody_wait_longer_than_it(
    store: StoreFixture,
) -> None:
    worker, sender = await a_worker(store, busy(retry_after_ms=1_800_000))
    await store.tasks.create([a_task_without("asks")])
    await worker.work()
    end = worker.at + 1_800_000
    waiting = [a_task_without(str(n)) for n in range(50)]
    await store.tasks.create(waiting)
    await worker.work_until(end - 30_000, step=30_000)
    own = a_task(id="own", callback=OLD)
    await store.tasks.create([own])
    await worker.work()
    assert (await worker.find(own)).score <= end + 400, "the hold ends at a multiple of 250 ms, its tasks at one of 50"
    await worker.work_until(end - 1000, step=1000)
    assert len(sender.urls) == 1
    await worker.work_until(end + 1000, step=100)
    assert len(sender.urls) == len(["asks", "asks again", own, *waiting])


async def test_a_policys_receiver_that_hangs_does_not_hold_up_other_receivers_of_the_topic(
    store: StoreFixture,
) -> None:
    class HangingSender(UrlSender):
        async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
            if task.callback == OLD:
                self.may_answer.clear()
            else:
                self.may_answer.set()
            return await super().send(task, attempt, failures, now, policy)

    sender = HangingSender()
    worker = ManualWorker(store, sender, slots=16)
    await worker.set_policy("order", callback=OLD)
    await store.tasks.create([a_task_without(f"hangs-{n}") for n in range(100)])
    await worker.tick()
    hanging = len(sender.urls)
    await store.tasks.create([a_task(id=f"own-{n}", callback=OWN) for n in range(3)])
    for _ in range(30):
        worker.at += 100
        await worker.tick()
    assert hanging < 16
    assert {id for id, url in sender.urls if url == OWN} == {"own-0", "own-1", "own-2"}
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_a_topic_may_change_between_push_and_pull(store: StoreFixture) -> None:
    worker, sender = await a_worker(store)
    task = a_task_without()
    await store.tasks.create([task])
    await worker.set_policy("order", deliver="pull")
    assert await worker.work() == 0
    await worker.set_policy("order", deliver="push")
    await worker.upkeep.resumer.tick(worker.at)
    worker.at += 1000
    await worker.work()
    assert sender.urls == [("a", OLD)]


async def test_a_dead_letter_topic_calls_the_callback_of_its_own_policy(store: StoreFixture) -> None:
    worker, sender = await a_worker(store, FAILED)
    await worker.set_policy("order", dead_to="failed")
    await worker.set_policy("failed", callback=NEW)
    await store.tasks.create([a_task_without(max_retry=0)])
    await worker.work()
    worker.at += 1000
    await worker.work()
    assert sender.urls == [("a", OLD), ("a", NEW)]


async def test_claims_get_no_notice_of_tasks_whose_policy_names_what_is_called(store: StoreFixture) -> None:
    await store.policies.change(topic_scope("order"), lambda before: before.merge({"callback": OLD}))
    groups = [ItemGroup(ShardTopic(store.keys.shards[0], b"order"), [a_task_without()], [0])]
    assert store.due_notices.of(groups) == []
    await store.policies.change(topic_scope("order"), lambda before: before.merge({"deliver": "pull"}))
    assert len(store.due_notices.of(groups)) == 1
