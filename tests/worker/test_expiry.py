"""Expiry, retention of dead tasks, and deliveries, by each topic's policy."""

from __future__ import annotations

import pytest

from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import namespace_scope, topic_scope
from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket
from later.worker.expiry import SWEEP_TASKS
from tests.builders import NOW, a_task
from tests.store.inspection import claim_due
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, GONE, LEASE_MS, FakeSender, ManualWorker, busy

DAY = 86_400_000
LOW = 2
"""Everything may happen this many ms late, because the time of the store is known as an interval."""


async def set_policy(worker: ManualWorker, name: str, **fields: object) -> None:
    scope = namespace_scope(name.removesuffix("/")) if name.endswith("/") else topic_scope(name)
    await worker.policies.change(scope, lambda before: before.merge(fields))  # type: ignore[arg-type]  # as written


class PolicyRecorder(FakeSender):
    """A sender that records the policy of each call."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__(*answers)
        self.policies: list[Policy] = []

    async def send(self, task: Task, attempt: int, now: int, policy: Policy) -> Outcome:
        self.policies.append(policy)
        return await super().send(task, attempt, now, policy)


class TestExpiry:
    async def test_a_task_dies_at_the_end_of_its_ttl_and_is_never_delivered(self, store: StoreFixture) -> None:
        task = a_task(delay=900, ttl=60)
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := FakeSender())
        worker.at = NOW + 60_000
        await worker.work()
        worker.at = NOW + 900_000 + LOW
        await worker.work()
        found = await worker.find(task)
        assert (found.state, found.score, found.failure and found.failure.reason) == (
            Bucket.DEAD, NOW + 60_000, "expired",
        )  # fmt: skip
        assert sender.calls == []
        assert worker.metrics.registry.get_sample_value("later_dead_total", {"reason": "expired"}) == 1

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
        ticks = [await worker.expirer.tick(NOW + 5_000) for _ in range(4)]
        assert sum(tick.moved for tick in ticks) == 1200
        assert ticks[-1].next_due is None


class TestSweep:
    async def test_dead_tasks_are_kept_for_their_topics_dead_keep(self, store: StoreFixture) -> None:
        tasks = {name: a_task(topic=name, id=name.replace("/", "-")) for name in ("a", "b", "shop/c")}
        await store.tasks.create([*tasks.values()])
        worker = ManualWorker(store, FakeSender(GONE, GONE, GONE), policy=Policy(dead_keep_ms=3 * DAY))
        await set_policy(worker, "b", dead_keep=60)
        await set_policy(worker, "shop/", dead_keep=3600)
        await worker.work()
        gone_after = {}
        for minutes in (0.5, 1.5, 59, 61, 3 * 1440 - 1, 3 * 1440 + 1):
            worker.at = NOW + int(minutes * 60_000)
            await worker.work()
            gone_after[minutes] = {name for name, task in tasks.items() if await worker.is_gone(task)}
        assert gone_after == {
            0.5: set(), 1.5: {"b"}, 59: {"b"}, 61: {"b", "shop/c"}, 4319: {"b", "shop/c"}, 4321: {"a", "b", "shop/c"},
        }  # fmt: skip

    async def test_topics_with_a_long_dead_keep_hide_no_other(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"old-{n}") for n in range(50)])
        worker = ManualWorker(store, FakeSender(*[GONE] * 51))
        await worker.work()
        await set_policy(worker, "young", dead_keep=1)
        young = a_task(topic="young", created_at=NOW + 1000)
        await store.tasks.create([young])
        worker.at = NOW + 1000 + LOW
        await worker.work()
        worker.at += 1010
        await worker.sweeper.tick(worker.at)
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
        assert await store.tasks.create([task]) == [False]

    async def test_a_tick_removes_a_limited_number_and_reports_more(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(created_at=NOW - 1) for _ in range(SWEEP_TASKS + 200)])
        worker = ManualWorker(store, FakeSender(*[GONE] * 1200), slots=2000, policy=Policy(dead_keep_ms=0))
        while await worker.claimer.tick(NOW + LOW) != (0, None):
            await worker.deliveries.drain(60)
        first = await worker.sweeper.tick(NOW + 10)
        assert first.moved >= SWEEP_TASKS
        assert first.next_due == NOW + 10
        assert await worker.sweeper.tick(NOW + 10) == (SWEEP_TASKS + 200 - first.moved, None)


class TestDeliveries:
    async def test_a_topic_has_its_own_backoff(self, store: StoreFixture) -> None:
        tasks = [a_task(topic=topic) for topic in ("a", "b")]
        await store.tasks.create(tasks)
        worker = ManualWorker(store, FakeSender(*[FAILED] * 4))
        await set_policy(worker, "b", retry_base=2, retry_cap=3)
        await worker.work()
        assert [(await worker.find(task)).score - worker.clock.now().high for task in tasks] == [10_000, 2_000]
        worker.at = NOW + 20_000
        await worker.work()
        assert (await worker.find(tasks[1])).score - worker.clock.now().high == 3_000

    async def test_limits_on_delays_do_not_apply_to_retries(self, store: StoreFixture) -> None:
        task = a_task()
        await store.tasks.create([task])
        worker = ManualWorker(store, FakeSender(FAILED, busy(60_000)))
        await set_policy(worker, "order", max_delay=1, delays=False, default_delay=0)
        await worker.work()
        assert (await worker.find(task)).state is Bucket.ERROR
        worker.at = NOW + 10_000 + 2 * LOW
        await worker.work()
        assert (await worker.find(task)).score >= worker.at + 60_000

    @pytest.mark.parametrize(
        ("timeout", "lease_ms"), [(15, LEASE_MS), (120, LEASE_MS + 105_000), (1, LEASE_MS - 14_000)]
    )
    async def test_a_lease_follows_its_topics_timeout(self, store: StoreFixture, timeout: int, lease_ms: int) -> None:
        task = a_task()
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := PolicyRecorder())
        await set_policy(worker, "order", timeout=timeout)
        sender.may_answer.clear()
        await worker.tick()
        found = await worker.find(task)
        assert (found.state, found.score) == (Bucket.UNACK, NOW + lease_ms)
        sender.may_answer.set()
        await worker.deliveries.drain(60)
        assert [policy.timeout_ms for policy in sender.policies] == [timeout * 1000]

    async def test_a_claim_whose_lease_is_too_short_for_a_raised_timeout_is_returned(self, store: StoreFixture) -> None:
        task = a_task()
        await store.tasks.create([task])
        [claim] = await claim_due(store)
        worker = ManualWorker(store, sender := PolicyRecorder(DONE))
        await set_policy(worker, "order", timeout=120)
        worker.deliveries.start(claim)
        await worker.deliveries.drain(60)
        assert sender.calls == []
        assert (await worker.find(task)).state is Bucket.DELAY
        await worker.work()
        assert await worker.is_gone(task)

    async def test_nothing_is_claimed_without_policies(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail() -> None:
            raise StoreDown("the store is gone")

        await store.tasks.create([a_task()])
        worker = ManualWorker(store, sender := FakeSender())
        monkeypatch.setattr(worker.policies, "current", fail)
        with pytest.raises(StoreDown):
            await worker.tick()
        assert sender.calls == []
