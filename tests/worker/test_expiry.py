"""Expiry of tasks and removal of dead ones, by each topic's policy."""

from __future__ import annotations

from later.core.policy import Policy
from later.store.keys import Bucket
from later.store.types import ExistingTask
from later.worker.expiry import SWEEP_TASKS
from tests.builders import NOW, a_task
from tests.store_fixture import StoreFixture
from tests.worker.workers import FAILED, GONE, MAX_LATE_MS, FakeSender, ManualWorker

DAY_MS = 86_400_000


class TestExpiry:
    async def test_a_task_dies_at_the_end_of_its_ttl_and_is_never_delivered(self, store: StoreFixture) -> None:
        task = a_task(delay=900, ttl=60)
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := FakeSender())
        worker.at = NOW + 60_000
        await worker.work()
        worker.at = NOW + 900_000 + MAX_LATE_MS
        await worker.work()
        found = await worker.find(task)
        assert (found.state, found.score, found.failure and found.failure.reason) == (
            Bucket.DEAD, NOW + 60_000, "expired",
        )  # fmt: skip
        assert sender.calls == []
        assert (
            worker.metrics.registry.get_sample_value("later_topic_dead_total", {"topic": "order", "reason": "expired"})
            == 1
        )

    async def test_a_task_expires_while_no_slot_is_free(self, store: StoreFixture) -> None:
        first, second = a_task(), a_task(delay=1, ttl=5)
        await store.tasks.create([first, second])
        worker = ManualWorker(store, sender := FakeSender(), slots=1)
        sender.may_answer.clear()
        await worker.tick()
        worker.at = NOW + 5_000
        await worker.tick()
        assert (await worker.find(second)).state is Bucket.DEAD
        sender.may_answer.set()
        await worker.deliveries.drain(60)

    async def test_a_failure_after_the_ttl_is_not_retried(self, store: StoreFixture) -> None:
        task = a_task(ttl=5)
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := FakeSender(FAILED))
        sender.may_answer.clear()
        await worker.tick()
        worker.at = NOW + 5_000
        sender.may_answer.set()
        await worker.deliveries.drain(60)
        found = await worker.find(task)
        assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "expired")

    async def test_many_tasks_that_expire_together_are_moved_in_several_ticks(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(delay=60, ttl=5) for _ in range(1200)])
        worker = ManualWorker(store, FakeSender())
        ticks = [await worker.upkeep.expirer.tick(NOW + 5_000) for _ in range(4)]
        assert sum(tick.moved for tick in ticks) == 1200
        assert ticks[-1].next_due is None


class TestSweep:
    async def test_dead_tasks_are_kept_for_their_topics_dead_keep(self, store: StoreFixture) -> None:
        tasks = {name: a_task(topic=name, id=name.replace("/", "-")) for name in ("a", "b", "shop/c")}
        await store.tasks.create([*tasks.values()])
        worker = ManualWorker(store, FakeSender(GONE, GONE, GONE), policy=Policy(dead_keep_ms=3 * DAY_MS))
        await worker.set_policy("b", dead_keep=60)
        await worker.set_namespace_policy("shop", dead_keep=3600)
        await worker.work()
        removed_after = {}
        for minutes in (0.5, 1.5, 59, 61, 3 * 1440 - 1, 3 * 1440 + 1):
            worker.at = NOW + int(minutes * 60_000)
            await worker.work()
            removed_after[minutes] = {name for name, task in tasks.items() if await worker.is_gone(task)}
        assert removed_after == {
            0.5: set(), 1.5: {"b"}, 59: {"b"}, 61: {"b", "shop/c"}, 4319: {"b", "shop/c"}, 4321: {"a", "b", "shop/c"},
        }  # fmt: skip

    async def test_topics_with_a_long_dead_keep_hide_no_other(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"old-{n}") for n in range(50)])
        worker = ManualWorker(store, FakeSender(*[GONE] * 51))
        await worker.work()
        await worker.set_policy("young", dead_keep=1)
        young = a_task(topic="young", created_at=NOW + 1000)
        await store.tasks.create([young])
        worker.at = NOW + 1000 + MAX_LATE_MS
        await worker.work()
        worker.at += 1010
        await worker.upkeep.sweeper.tick(worker.at)
        assert await worker.is_gone(young)

    async def test_a_dead_keep_of_zero_keeps_no_dead_task(self, store: StoreFixture) -> None:
        task = a_task()
        await store.tasks.create([task])
        worker = ManualWorker(store, FakeSender(GONE), policy=Policy(dead_keep_ms=0))
        await worker.work()
        worker.at += 10
        await worker.work()
        assert await worker.is_gone(task)

    async def test_a_callers_id_is_remembered_after_the_removal(self, store: StoreFixture) -> None:
        task = a_task(id="a", own_id=True)
        await store.tasks.create([task])
        worker = ManualWorker(store, FakeSender(GONE), policy=Policy(dead_keep_ms=1000))
        await worker.work()
        worker.at = NOW + 5000
        await worker.work()
        assert await store.tasks.create([task]) == [ExistingTask(None)]

    async def test_a_tick_removes_a_limited_number_and_reports_more(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(created_at=NOW - 1) for _ in range(SWEEP_TASKS + 200)])
        worker = ManualWorker(store, FakeSender(*[GONE] * 1200), slots=2000, policy=Policy(dead_keep_ms=0))
        while await worker.claimer.tick(NOW + MAX_LATE_MS) != (0, None):
            await worker.deliveries.drain(60)
        first = await worker.upkeep.sweeper.tick(NOW + 10)
        assert first.moved >= SWEEP_TASKS
        assert first.next_due == NOW + 10
        assert await worker.upkeep.sweeper.tick(NOW + 10) == (SWEEP_TASKS + 200 - first.moved, None)
