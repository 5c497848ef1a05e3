"""Pulled topics in a worker: it delivers nothing of them, and they cost it nothing."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from later.core.clock import Interval
from later.core.policy import Policy, PolicyValue
from later.core.policy_scopes import Policies, Settings, namespace_scope, topic_scope
from later.store.keys import Bucket
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.types import BucketRange
from tests.builders import NOW, a_task
from tests.store.inspection import PAUSED, ask, assert_sound, read_contents
from tests.store.test_cost import commands_of
from tests.store_fixture import StoreFixture
from tests.worker.workers import FakeSender, ManualWorker


async def pull(store: StoreFixture, topic: str = "order", limit: int = 500, at: int = NOW) -> list[PulledTask]:
    request = PullRequest([PullTopic(topic, limit, 30_000)], limit)
    [result] = await store.pulls.claim([request], Interval(at, at))
    assert isinstance(result, PullResult)
    return result.tasks


async def wakes_of(store: StoreFixture, topic: str) -> list[int]:
    wakes = (await read_contents(store)).wakes
    return [at for (bucket, _, name), at in wakes.items() if (bucket, name) == (Bucket.DELAY, topic)]


async def test_the_write_of_the_policy_holds_the_topic_in_all_shards(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=str(n)) for n in range(3)])
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", deliver="pull")
    assert await wakes_of(store, "order") == [PAUSED] * len(store.keys.shards)
    await worker.set_policy("order", deliver="pull", claim_lease=60)
    await worker.upkeep.resumer.tick(NOW)
    assert await worker.work() == 0
    assert await wakes_of(store, "order") == [PAUSED] * len(store.keys.shards)
    assert len(await pull(store)) == 3


async def test_a_worker_holds_a_topic_that_its_namespace_makes_pulled(store: StoreFixture) -> None:
    task = a_task(topic="shop/order", callback="")
    await store.tasks.create([task])
    sender = FakeSender()
    worker = ManualWorker(store, sender)
    await worker.set_namespace_policy("shop", deliver="pull")
    assert await worker.work() == 0
    assert await wakes_of(store, "shop/order") == [PAUSED]
    assert [pulled.attempt for pulled in await pull(store, "shop/order")] == [1]
    assert not sender.calls


async def test_a_worker_that_does_not_know_the_policy_yet_gives_the_task_back_and_holds_the_topic(
    store: StoreFixture,
) -> None:
    sender = FakeSender()
    worker = ManualWorker(store, sender)
    await worker.policies.read()
    others = store.new_policy_book()
    await others.change(namespace_scope("shop"), lambda before: before.merge({"deliver": "pull"}))
    task = a_task(topic="shop/order", callback="")
    await store.tasks.create([task])
    assert await worker.work() == 1
    record = await worker.find(task)
    assert (record.state, record.score, record.attempts) == (Bucket.DELAY, task.execute_at, 0)
    assert await wakes_of(store, "shop/order") == [PAUSED]
    assert await worker.work() == 0
    assert not sender.calls
    await assert_sound(store)


async def test_a_task_without_a_callback_in_a_pushed_topic_is_dead_and_can_be_redriven(store: StoreFixture) -> None:
    task = a_task(callback="")
    await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender())
    for _ in range(2):
        assert await worker.work() == 1
        record = await worker.find(task)
        assert record.state is Bucket.DEAD
        assert record.failure is not None
        assert record.failure.reason == "no callback"
        worker.at += 1000
        await store.dead_letters.redrive(BucketRange("order", Bucket.DEAD), now=worker.at)
    await worker.set_policy("order", deliver="pull")
    assert [pulled.task.id for pulled in await pull(store, at=worker.at)] == [task.id]


async def test_a_worker_that_does_not_know_the_policy_yet_does_not_resume_the_topic(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender())
    await worker.policies.read()
    changes: list[dict[str, PolicyValue | None]] = [{"deliver": "pull"}, {"deliver": None, "paused": True}]
    for fields in changes:
        await store.new_policy_book().change(topic_scope("order"), partial(Settings.merge, fields=fields))
        assert (await worker.upkeep.resumer.tick(worker.at)).moved == 0
        assert await wakes_of(store, "order") == [PAUSED] * len(store.keys.shards)


async def test_a_topic_that_is_pushed_again_is_delivered(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", deliver="pull", ramp=0)
    assert await worker.work() == 0
    await worker.set_policy("order", deliver=None)
    worker.at += 1000
    await worker.upkeep.resumer.tick(worker.at)
    assert await worker.work() == 1
    assert await worker.is_gone(task)
    await assert_sound(store)


async def test_a_topic_that_is_paused_and_pulled_stays_held_when_one_of_them_ends(store: StoreFixture) -> None:
    await store.tasks.create([a_task()])
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", deliver="pull", paused=True, ramp=0)
    for change in ({"deliver": None}, {"deliver": "pull", "paused": None}):
        await worker.set_policy("order", **change)
        await worker.upkeep.resumer.tick(worker.at)
        assert await worker.work() == 0


async def test_many_pulled_topics_are_judged_once_for_each_change_of_the_policies(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"shop/{n}" for n in range(600)]
    worker = ManualWorker(store, FakeSender())
    await worker.set_namespace_policy("shop", deliver="pull")
    wakes = store.keys.shards[0].wakes[Bucket.DELAY]
    await ask(store, [("ZADD", wakes, *(word for name in names for word in ("-inf", name)))])
    judged: Counter[str] = Counter()
    for_topic = Policies.for_topic

    def count(policies: Policies, topic: str) -> Policy:
        judged[topic] += 1
        return for_topic(policies, topic)

    monkeypatch.setattr(Policies, "for_topic", count)
    for _ in range(3):
        worker.at += 100
        assert (await worker.upkeep.resumer.tick(worker.at)).moved == 0
    assert judged == Counter(names)
    await worker.set_namespace_policy("shop", deliver=None)
    assert (await worker.upkeep.resumer.tick(worker.at)).moved == len(names)


async def test_due_tasks_of_a_pulled_topic_cost_an_idle_worker_nothing(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", deliver="pull")

    async def commands_of_a_tick() -> Counter[str]:
        worker.at += 200
        return Counter(await commands_of(store, worker.tick))

    await commands_of_a_tick()
    before = await commands_of_a_tick()
    await store.tasks.create([a_task(callback="") for _ in range(1000)])
    assert await commands_of_a_tick() == before
    assert "evalsha" not in before


async def test_tasks_of_both_kinds_survive_push_pull_push_and_end_with_a_reason(store: StoreFixture) -> None:
    scope = topic_scope("order")
    policies, sender = store.new_policy_book(), FakeSender()
    workers = [ManualWorker(store, sender, instance=name) for name in "ab"]
    created, pulled_ids = dict[str, bool](), set[str]()
    for turn, deliver in enumerate(["push", "pull", "push", "pull", "push"]):
        fields: dict[str, PolicyValue | None] = {"deliver": deliver, "ramp": 0}
        await policies.change(scope, partial(Settings.merge, fields=fields))
        for step in range(6):
            tasks = [a_task(id=f"{turn}.{step}.{n}", callback="" if n % 2 else "http://r/") for n in range(20)]
            created |= {task.id: bool(task.callback) for task in tasks}
            await store.tasks.create(tasks)
            for worker in workers:
                worker.at += 100
                await worker.upkeep.resumer.tick(worker.at)
                await worker.work()
            if deliver == "pull":
                some = await pull(store, limit=7, at=workers[0].at)
                pulled_ids |= {one.task.id for one in some if step % 2 == 0}
                ends = store.pulls.release if step % 2 else lambda leases: store.pulls.ack(leases, NOW)
                assert all(await ends([one.lease for one in some]))
    for worker in workers:
        worker.at += 5000
        await worker.policies.read()
        await worker.upkeep.resumer.tick(worker.at)
    while await workers[0].work():
        pass
    contents = await assert_sound(store, workers[0].at)
    delivered = [call.id for call in sender.calls]
    dead = contents.buckets.get((Bucket.DEAD, "order"), {})
    assert len(delivered) == len({*delivered})
    assert {*delivered} | pulled_ids | dead.keys() == created.keys()
    assert not {*delivered} & pulled_ids
    assert not any(created[id] for id in dead)
