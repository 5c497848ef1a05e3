"""Deliveries and their retries by each topic's policy, on a real store, with time as a value."""

from __future__ import annotations

import asyncio
from unittest.mock import DEFAULT, AsyncMock

import pytest
from structlog.testing import capture_logs

from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.retry import Outcome
from later.core.task import Task
from later.delivery.http_client import LocalFault
from later.store.keys import Bucket
from later.worker.deliveries import FAULT_PAUSE_MS, LOCAL_FAULT_PAUSE_MS
from later.worker.fault_reports import FAULT_LOG_MS
from tests.builders import NOW, a_task
from tests.store.inspection import claim_due
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, LEASE_MS, MAX_LATE_MS, FakeSender, ManualWorker, busy

SECRET = "hunter2"


class PolicyRecorder(FakeSender):
    """A sender that records the policy of each call."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__(*answers)
        self.policies: list[Policy] = []

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        self.policies.append(policy)
        return await super().send(task, attempt, failures, now, policy)


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
    worker.deliveries.start(claim, worker.at)
    await worker.deliveries.drain(60)
    assert sender.calls == []
    assert (await worker.find(task)).state is Bucket.DELAY
    await worker.work()
    assert await worker.is_gone(task)


# Faults of later's own


class BrokenSender(FakeSender):
    """A sender with a bug whose error quotes a secret; `repair` ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        outcome = await super().send(task, attempt, failures, now, policy)
        if self.is_broken:
            raise KeyError(SECRET)
        return outcome


async def test_a_fault_of_ours_spends_no_retry_and_the_task_is_tried_a_minute_later(store: StoreFixture) -> None:
    task = a_task(max_retry=0)
    await store.tasks.create([task])
    worker = ManualWorker(store, sender := BrokenSender())
    await worker.work()
    found = await worker.find(task)
    assert (found.state, found.attempts, found.failure) == (Bucket.DELAY, 0, None)
    assert found.score == worker.clock.now().high + FAULT_PAUSE_MS
    await worker.work_until(NOW + FAULT_PAUSE_MS - 1, step=1000)
    assert len(sender.calls) == 1
    sender.is_broken = False
    await worker.work_until(NOW + FAULT_PAUSE_MS + 1000, step=1000)
    assert [call.attempt for call in sender.calls] == [1, 1]
    assert await worker.is_gone(task)


class SlowSender(FakeSender):
    """A sender of calls that take 400 ms each on the clock of its worker."""

    worker: ManualWorker

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        outcome = await super().send(task, attempt, failures, now, policy)
        self.worker.at += 400
        return outcome


async def test_a_failure_says_how_long_its_call_took_and_what_failed_before(store: StoreFixture) -> None:
    await store.tasks.create([task := a_task()])
    sender = SlowSender(FAILED, FAILED)
    worker = sender.worker = ManualWorker(store, sender)
    await worker.work_until(NOW + 15_000, step=1000)
    failure = (await worker.find(task)).failure
    assert failure is not None
    assert [(past.attempt, past.took_ms) for past in failure.all] == [(1, 400), (2, 400)]


class SenderWithoutDescriptors(FakeSender):
    """A sender whose machine has no descriptor left for the first three calls."""

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        outcome = await super().send(task, attempt, failures, now, policy)
        if len(self.calls) <= 3:
            raise LocalFault("Too many open files")
        return outcome


async def test_a_call_that_this_machine_cannot_make_is_no_attempt_and_is_made_a_second_later(
    store: StoreFixture,
) -> None:
    task = a_task(max_retry=0)
    await store.tasks.create([task])
    worker = ManualWorker(store, sender := SenderWithoutDescriptors())
    with capture_logs() as logs:
        await worker.work()
        found = await worker.find(task)
        assert (found.state, found.attempts, found.failure) == (Bucket.DELAY, 0, None)
        assert found.score == worker.clock.now().high + LOCAL_FAULT_PAUSE_MS
        await worker.work_until(NOW + 5 * LOCAL_FAULT_PAUSE_MS, step=500)
    assert [call.attempt for call in sender.calls] == [1, 1, 1, 1]
    assert await worker.is_gone(task)
    assert worker.metrics.registry.get_sample_value("later_delivery_local_faults_total") == 3
    assert worker.metrics.registry.get_sample_value("later_lateness_seconds_count", {"held": "fault"}) == 3
    assert [(event["log_level"], event["event"], event["reason"]) for event in logs if "reason" in event][:3] == [
        ("warning", "delivery not possible", "Too many open files"),
        ("debug", "delivery still not possible", "Too many open files"),
        ("debug", "delivery still not possible", "Too many open files"),
    ]


async def test_a_fault_of_ours_is_counted_and_logged_with_its_traceback_and_no_secret(store: StoreFixture) -> None:
    task = a_task(content=SECRET)
    await store.tasks.create([task])
    worker = ManualWorker(store, BrokenSender())
    with capture_logs() as logs:
        await worker.work()
    [event] = logs
    assert (event["event"], event["log_level"], event["id"], event["topic"]) == (
        "delivery crashed",
        "error",
        task.id,
        "order",
    )
    assert "in send\n    raise KeyError(SECRET)\nKeyError" in event["exception"]
    assert SECRET not in str(event)
    assert worker.metrics.registry.get_sample_value("later_delivery_faults_total") == 1
    assert worker.metrics.registry.get_sample_value("later_deliveries_total", {"outcome": "failed"}) == 0


async def test_a_fault_that_every_delivery_meets_is_logged_as_an_error_once_a_minute(store: StoreFixture) -> None:
    await store.tasks.create([a_task() for _ in range(3)])
    worker = ManualWorker(store, BrokenSender())
    with capture_logs() as logs:
        await worker.work()
        first_at = worker.clock.now().low
        await store.tasks.create([a_task()])
        worker.at = first_at + FAULT_LOG_MS - 1000
        await worker.work()
        assert [event["event"] for event in logs] == ["delivery crashed"] + ["delivery crashed again"] * 3
        assert {event["log_level"] for event in logs[1:]} == {"debug"}
        await store.tasks.create([a_task()])
        worker.at = first_at + FAULT_LOG_MS
        await worker.work()
    assert [event["event"] for event in logs].count("delivery crashed") == 2
    assert worker.metrics.registry.get_sample_value("later_delivery_faults_total") == len(logs)


async def test_a_fault_after_the_call_frees_the_slot_and_keeps_the_lease(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender())
    monkeypatch.setattr("later.worker.deliveries.judge", None)
    await worker.work()
    assert (worker.fair_share.total_in_use, (await worker.find(task)).state) == (0, Bucket.UNACK)
    assert worker.metrics.registry.get_sample_value("later_delivery_faults_total") == 1


async def test_calls_that_this_machine_cannot_make_are_put_back_together(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would have to be asked over a connection each, and this machine may have no descriptor for them."""

    class FailingSender(FakeSender):
        async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
            await asyncio.sleep(0)
            raise LocalFault("Too many open files")

    await store.tasks.create([a_task() for _ in range(10)])
    worker = ManualWorker(store, FailingSender())
    put_back = AsyncMock(wraps=store.tasks.put_back)
    monkeypatch.setattr(worker.store.tasks, "put_back", put_back)
    await worker.work()
    assert [len(call.args[0]) for call in put_back.call_args_list] == [10]


async def test_tasks_that_the_store_cannot_take_back_are_put_back_with_the_next_tick(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [a_task() for _ in range(3)]
    await store.tasks.create(tasks)
    worker = ManualWorker(store, SenderWithoutDescriptors())
    put_back = AsyncMock(wraps=store.tasks.put_back, side_effect=[StoreDown("the store is away"), DEFAULT])
    monkeypatch.setattr(worker.store.tasks, "put_back", put_back)
    await worker.work()
    assert {(await worker.find(task)).state for task in tasks} == {Bucket.UNACK}
    await worker.tick()
    assert {(await worker.find(task)).state for task in tasks} == {Bucket.DELAY}
    assert put_back.call_count == 2


# A stop


@pytest.mark.parametrize("waits_for", ["the clock", "a hold"])
@pytest.mark.parametrize("answer", [DONE, busy(60_000), FAILED], ids=lambda answer: answer.kind.value)
async def test_a_stop_between_the_answer_and_the_settle_does_not_give_the_task_back(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, waits_for: str, answer: Outcome
) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, sender := FakeSender(answer))
    stopped = asyncio.Event()

    async def wait(*_: object) -> None:
        await stopped.wait()

    if waits_for == "the clock":
        monkeypatch.setattr(worker.clock, "is_steady", lambda: False)
        monkeypatch.setattr(worker.store.time, "measure", wait)
    else:
        monkeypatch.setattr(worker.held_origins, "hold", wait)
    given_back = AsyncMock()
    monkeypatch.setattr(worker.store.tasks, "put_back", given_back)
    await worker.tick()
    await sender.called.wait()
    stop = asyncio.create_task(worker.deliveries.drain(0))
    await asyncio.sleep(0.01)
    stopped.set()
    await stop
    given_back.assert_not_called()
    if answer is DONE:
        assert await worker.is_gone(task)
    else:
        assert (await worker.find(task)).state is Bucket.ERROR


async def test_a_stop_does_not_wait_for_ever_for_a_settle(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender(busy(60_000)))

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(worker.held_origins, "hold", hang)
    monkeypatch.setattr("later.worker.deliveries.SETTLE_GRACE_S", 0.01)
    await worker.tick()
    await worker.deliveries.drain(0.01)
    assert (await worker.find(task)).state is Bucket.UNACK, "it was answered: its lease must expire first"
    assert worker.fair_share.total_in_use == 0


async def test_nothing_is_claimed_without_policies(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise StoreDown("the store is gone")

    await store.tasks.create([a_task()])
    worker = ManualWorker(store, sender := FakeSender())
    monkeypatch.setattr(worker.policies, "current", fail)
    with pytest.raises(StoreDown):
        await worker.tick()
    assert sender.calls == []
