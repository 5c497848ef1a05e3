"""Deliveries and their retries by each topic's policy, on a real store, with time as a value."""

from __future__ import annotations

import pytest

from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket
from tests.builders import NOW, a_task
from tests.store.inspection import claim_due
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, LEASE_MS, MAX_LATE_MS, FakeSender, ManualWorker, busy


class PolicyRecorder(FakeSender):
    """A sender that records the policy of each call."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__(*answers)
        self.policies: list[Policy] = []

    async def send(self, task: Task, attempt: int, now: int, policy: Policy) -> Outcome:
        self.policies.append(policy)
        return await super().send(task, attempt, now, policy)


async def test_a_topic_has_its_own_backoff(store: StoreFixture) -> None:
    tasks = [a_task(topic=topic) for topic in ("a", "b")]
    await store.tasks.create(tasks)
    worker = ManualWorker(store, FakeSender(*[FAILED] * 4))
    await worker.set_policy("b", retry_base=2, retry_cap=3)
    await worker.work()
    assert [(await worker.find(task)).score - worker.clock.now().high for task in tasks] == [10_000, 2_000]
    worker.at = NOW + 20_000
    await worker.work()
    assert (await worker.find(tasks[1])).score - worker.clock.now().high == 3_000


async def test_limits_on_delays_do_not_apply_to_retries(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender(FAILED, busy(60_000)))
    await worker.set_policy("order", max_delay=1, delays=False, default_delay=0)
    await worker.work()
    assert (await worker.find(task)).state is Bucket.ERROR
    worker.at = NOW + 10_000 + 2 * MAX_LATE_MS
    await worker.work()
    assert (await worker.find(task)).score >= worker.at + 60_000


@pytest.mark.parametrize(("timeout", "lease_ms"), [(15, LEASE_MS), (120, LEASE_MS + 105_000), (1, LEASE_MS - 14_000)])
async def test_a_lease_follows_its_topics_timeout(store: StoreFixture, timeout: int, lease_ms: int) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, sender := PolicyRecorder())
    await worker.set_policy("order", timeout=timeout)
    sender.may_answer.clear()
    await worker.tick()
    found = await worker.find(task)
    assert (found.state, found.score) == (Bucket.UNACK, NOW + lease_ms)
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    assert [policy.timeout_ms for policy in sender.policies] == [timeout * 1000]


async def test_a_claim_whose_lease_is_too_short_for_a_raised_timeout_is_returned(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    [claim] = await claim_due(store)
    worker = ManualWorker(store, sender := PolicyRecorder(DONE))
    await worker.set_policy("order", timeout=120)
    worker.deliveries.start(claim)
    await worker.deliveries.drain(60)
    assert sender.calls == []
    assert (await worker.find(task)).state is Bucket.DELAY
    await worker.work()
    assert await worker.is_gone(task)


async def test_nothing_is_claimed_without_policies(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise StoreDown("the store is gone")

    await store.tasks.create([a_task()])
    worker = ManualWorker(store, sender := FakeSender())
    monkeypatch.setattr(worker.policies, "current", fail)
    with pytest.raises(StoreDown):
        await worker.tick()
    assert sender.calls == []
