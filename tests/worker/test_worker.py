"""The lifecycle of a task in a worker, on a real store, with time as a value."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from later.core.caller import ANYBODY
from later.core.errors import LaterError, NotFound
from later.core.retry import Outcome
from later.core.schedule import ScheduleDraft, build_schedule
from later.core.task import Task, pack_id
from later.store.keys import Bucket
from later.store.tasks import MAX_CLAIM_BYTES
from later.store.types import ClaimRequest
from tests.builders import NOW, a_task
from tests.store.inspection import read_contents
from tests.store_fixture import StoreFixture
from tests.worker.workers import DONE, FAILED, GONE, LEASE_MS, MAX_LATE_MS, FakeSender, ManualWorker, busy

DAY_MS = 86_400_000


async def a_worker_with(store: StoreFixture, task: Task, *answers: Outcome) -> tuple[ManualWorker, FakeSender]:
    """Return a worker and its receiver, which gives these answers, with one task in the store."""
    sender = FakeSender(*answers)
    await store.tasks.create([task])
    return ManualWorker(store, sender), sender


async def test_a_task_is_not_delivered_before_it_is_due(store: StoreFixture) -> None:
    worker, sender = await a_worker_with(store, a_task(delay=15))
    worker.at = NOW + 14_999
    await worker.work()
    assert sender.calls == []


async def test_a_due_task_is_delivered_once_and_removed(store: StoreFixture) -> None:
    task = a_task(delay=15)
    worker, sender = await a_worker_with(store, task)
    worker.at = NOW + 15_000
    await worker.work()
    await worker.work()
    assert [call.id for call in sender.calls] == [task.id]
    assert await worker.is_gone(task)


async def test_a_worker_without_free_slots_still_wakes_the_other_tickers(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    worker = ManualWorker(store, sender := FakeSender(), slots=1)
    wakes: list[int] = []
    worker.claimer.wake_unack = worker.claimer.wake_error = wakes.append
    sender.may_answer.clear()
    await worker.tick()
    assert (wakes, worker.fair_share.free) == ([], 0)
    await worker.tick()
    assert wakes == [NOW + LEASE_MS]
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_a_tick_of_delay_wakes_the_ticker_of_schedules_when_the_first_one_fires(store: StoreFixture) -> None:
    """Each ticker of schedules by itself would ask the store ten times a second, or fire late what others have put."""
    worker = ManualWorker(store, FakeSender())
    wakes: list[int] = []
    worker.claimer.wake_schedules = wakes.append
    await worker.tick()
    assert wakes == []
    for every in (60, 20):
        draft = ScheduleDraft(
            topic="report", every=every, callback="http://a.example/", start=(NOW + every * 1000) / 1000
        )
        await store.schedules.put(build_schedule(draft, f"every-{every}", ANYBODY), NOW)
    await worker.tick()
    assert wakes == [NOW + 20_000]


async def test_a_worker_that_cannot_read_the_policies_still_wakes_the_other_tickers(store: StoreFixture) -> None:
    """Otherwise it would find a lease that another worker has lost up to five seconds later."""
    worker, sender = await a_worker_with(store, a_task(id="a", own_id=True))
    sender.may_answer.clear()
    await worker.tick()
    other = ManualWorker(store, FakeSender())
    wakes: list[int] = []
    other.claimer.wake_unack = wakes.append
    await store.redis.set(store.keys.policies, "not a hash")
    with pytest.raises(LaterError):
        await other.claimer.tick(other.at)
    assert wakes == [NOW + LEASE_MS]
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_retries_come_after_10_20_and_40_seconds_and_then_the_task_is_dead(store: StoreFixture) -> None:
    task = a_task(max_retry=3)
    worker, sender = await a_worker_with(store, task, *[FAILED] * 4)
    await worker.work()
    await worker.work_until(NOW + 71_000, step=200)
    pauses = [(after.at - before.at) / 1000 for before, after in zip(sender.calls, sender.calls[1:], strict=False)]
    assert pauses == pytest.approx([10, 20, 40], abs=0.21)
    assert min(pauses) >= 10
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason, found.attempts) == (Bucket.DEAD, "exhausted", 4)


async def test_failures_are_counted_and_attempts_numbered(store: StoreFixture) -> None:
    task = a_task(max_retry=5)
    worker, sender = await a_worker_with(store, task, FAILED, FAILED, FAILED)
    await worker.work()
    await worker.work_until(NOW + 35_000, step=500)
    found = await worker.find(task)
    assert found.failure is not None
    assert (found.state, found.failure.failures, found.attempts) == (Bucket.ERROR, 3, 3)
    assert [call.attempt for call in sender.calls] == [1, 2, 3]


async def test_a_busy_receiver_spends_no_retry(store: StoreFixture) -> None:
    task = a_task(max_retry=0)
    worker, sender = await a_worker_with(store, task, busy(), busy(), busy(), DONE)
    await worker.work()
    await worker.work_until(NOW + 60_000, step=500)
    assert len(sender.calls) == 4
    assert await worker.is_gone(task)


async def test_a_busy_receiver_gets_the_pause_of_its_retry_after(store: StoreFixture) -> None:
    worker, sender = await a_worker_with(store, a_task(), busy(retry_after_ms=120_000))
    await worker.work()
    await worker.work_until(NOW + 119_000, step=1000)
    assert len(sender.calls) == 1
    await worker.work_until(NOW + 121_000, step=1000)
    assert len(sender.calls) == 2


async def test_a_task_whose_receiver_is_busy_for_a_day_dies(store: StoreFixture) -> None:
    task = a_task()
    worker, _ = await a_worker_with(store, task, *[busy(retry_after_ms=DAY_MS // 2)] * 9)
    await worker.work()
    await worker.work_until(NOW + 2 * DAY_MS, step=DAY_MS // 8)
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "busy")


async def test_a_410_makes_a_task_dead_at_once(store: StoreFixture) -> None:
    task = a_task(max_retry=9)
    worker, _ = await a_worker_with(store, task, GONE)
    await worker.work()
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "gone")


async def test_an_expired_lease_spends_no_retry(store: StoreFixture) -> None:
    task = a_task(max_retry=0)
    worker, sender = await a_worker_with(store, task)
    await store.tasks.claim(requests_for(store, task), NOW, NOW + LEASE_MS)
    worker.at = NOW + LEASE_MS + MAX_LATE_MS
    await worker.work()
    assert [call.attempt for call in sender.calls] == [2]
    assert await worker.is_gone(task)


async def test_a_task_that_crashes_its_workers_dies_with_the_17th_lost_lease(store: StoreFixture) -> None:
    task = a_task()
    worker, sender = await a_worker_with(store, task)
    for crash in range(17):
        worker.at = NOW + crash * LEASE_MS
        await store.tasks.release(Bucket.UNACK, (await store.tasks.due_topics(Bucket.UNACK, 10)).topics, worker.at)
        await store.tasks.claim(requests_for(store, task), worker.at, worker.at + LEASE_MS)
    worker.at += LEASE_MS + MAX_LATE_MS
    await worker.work()
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "lost")
    assert sender.calls == []


async def test_a_task_deleted_in_flight_is_not_retried(store: StoreFixture) -> None:
    task = a_task()
    worker, sender = await a_worker_with(store, task, FAILED)
    sender.may_answer.clear()
    await worker.tick()
    await sender.called.wait()
    await store.edits.delete([task.id])
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    await worker.work_until(NOW + 60_000, step=1000)
    assert len(sender.calls) == 1
    assert await worker.is_gone(task)


async def test_a_late_answer_does_not_settle_a_new_task_of_the_same_id(store: StoreFixture) -> None:
    task = a_task(id="mine", own_id=True)
    worker, sender = await a_worker_with(store, task, GONE)
    sender.may_answer.clear()
    await worker.tick()
    await sender.called.wait()
    await store.edits.delete([task.id])
    await store.tasks.create([a_task(id="mine", own_id=True, delay=3600)])
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    assert (await worker.find(task)).state is Bucket.DELAY


async def test_an_expired_task_dies_undelivered(store: StoreFixture) -> None:
    task = a_task(delay=900, ttl=60)
    worker, sender = await a_worker_with(store, task)
    worker.at = NOW + 60_000 + MAX_LATE_MS
    await worker.work()
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "expired")
    assert sender.calls == []


async def test_a_task_expires_during_a_pause_between_attempts(store: StoreFixture) -> None:
    task = a_task(ttl=5)
    worker, sender = await a_worker_with(store, task, FAILED)
    await worker.work()
    worker.at = NOW + 5_000 + MAX_LATE_MS
    await worker.work()
    found = await worker.find(task)
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "expired")
    assert len(sender.calls) == 1


async def test_a_task_with_an_unreadable_body_dies_unchanged_and_stops_no_other(store: StoreFixture) -> None:
    broken, sound = a_task(), a_task()
    worker, sender = await a_worker_with(store, broken)
    await store.tasks.create([sound])
    await store.redis.hset(store.keys.shard_of(broken.id).pool.decode(), pack_id(broken.id), b"\xc1 not ours")
    await worker.work()
    found = await worker.find(broken)
    assert (found.state, found.failure and found.failure.reason, found.topic) == (Bucket.DEAD, "body", "order")
    assert [call.id for call in sender.calls] == [sound.id]
    kept = await store.redis.hget(store.keys.shard_of(broken.id).pool.decode(), pack_id(broken.id))
    assert kept == b"\xc1 not ours"


async def test_a_delivered_id_of_a_callers_choice_is_remembered(store: StoreFixture) -> None:
    task = a_task(id="mine", own_id=True)
    worker, _ = await a_worker_with(store, task)
    await worker.work()
    answer = (await store.lookup.query(["mine"]))[0]
    assert isinstance(answer, NotFound)
    assert answer.ended


async def test_a_delivered_id_is_remembered_as_its_task_says_or_the_policy(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender())
    await worker.set_namespace_policy("shop", remember=0)
    await store.tasks.create(
        [a_task(id=f"{topic}-{own}", topic=topic, own_id=True, remember_ms=own)
         for topic in ("shop/order", "order") for own in (None, 0, 7000)]
    )  # fmt: skip
    while await worker.work():
        pass
    kept = (await read_contents(store)).done
    ended_at = kept["order-7000"] - 7000
    assert NOW <= ended_at < NOW + 1000
    assert kept == {
        "shop/order-7000": ended_at + 7000, "order-7000": ended_at + 7000, "order-None": ended_at + 7 * 86_400_000
    }  # fmt: skip


async def test_a_worker_claims_no_more_than_it_has_slots(store: StoreFixture) -> None:
    sender = FakeSender()
    sender.may_answer.clear()
    worker = ManualWorker(store, sender, slots=4)
    await store.tasks.create([a_task() for _ in range(20)])
    for _ in range(5):
        await worker.tick()
    assert worker.fair_share.total_in_use == 2
    sender.may_answer.set()
    await worker.deliveries.drain(60)


async def test_large_tasks_are_claimed_a_few_at_a_time(store: StoreFixture) -> None:
    large = "x" * 1_000_000
    tasks = [a_task(content=large) for _ in range(40)]
    for task in tasks:
        await store.tasks.create([task])
    worker = ManualWorker(store, FakeSender())
    claimed = await worker.work()
    assert 0 < claimed * len(large) <= MAX_CLAIM_BYTES
    while await worker.work():
        pass
    assert [await worker.is_gone(task) for task in tasks] == [True] * 40


async def test_a_task_larger_than_the_claim_limit_is_delivered(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.store.tasks.MAX_CLAIM_BYTES", 10)
    task = a_task()
    worker, _ = await a_worker_with(store, task)
    await worker.work()
    assert await worker.is_gone(task)


async def test_a_delivery_whose_lease_is_nearly_over_is_not_started(store: StoreFixture) -> None:
    task = a_task()
    worker, sender = await a_worker_with(store, task)
    [result] = await store.tasks.claim(requests_for(store, task), NOW, NOW + LEASE_MS)
    assert not isinstance(result, Exception)
    worker.at = NOW + LEASE_MS - 15_000
    worker.deliveries.start(result.claims[0], worker.at)
    await worker.deliveries.drain(60)
    found = await worker.find(task)
    assert (sender.calls, found.state, found.attempts) == ([], Bucket.DELAY, 0)


async def test_a_stop_gives_back_the_tasks_of_deliveries_that_take_too_long(store: StoreFixture) -> None:
    task = a_task()
    worker, sender = await a_worker_with(store, task)
    sender.may_answer.clear()
    await worker.tick()
    await sender.called.wait()
    await worker.deliveries.drain(0.01)
    found = await worker.find(task)
    assert (found.state, found.score, worker.fair_share.total_in_use) == (Bucket.DELAY, NOW, 0)


async def test_a_stop_lets_settles_finish_however_short_its_timeout(store: StoreFixture) -> None:
    tasks = [a_task() for _ in range(50)]
    worker, _ = await a_worker_with(store, tasks[0])
    await store.tasks.create(tasks[1:])
    claimed = 0
    while claimed < len(tasks):  # two ticks if one of many shards happens to have more than its part of them
        claimed += await worker.tick()
    await asyncio.sleep(0)  # all are delivered, and being settled
    await worker.deliveries.drain(0)
    assert [await worker.is_gone(task) for task in tasks] == [True] * 50


async def test_a_stop_succeeds_although_permits_cannot_be_returned(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, sender = await a_worker_with(store, a_task())
    await worker.set_policy("order", concurrency=5)
    await worker.policies.read()
    sender.may_answer.clear()
    await worker.tick()
    monkeypatch.setattr(worker.store.permits, "acquire", AsyncMock(side_effect=RuntimeError("a bug")))
    sender.may_answer.set()
    with capture_logs() as logs:
        await worker.stop(60)
    assert [event["event"] for event in logs if event["log_level"] == "error"] == ["permits not returned"]
    assert worker.fair_share.total_in_use == 0


@pytest.mark.parametrize("broken", ["stop", "drain"])
async def test_a_stop_goes_on_if_one_of_its_steps_raises(
    broken: str, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = await a_worker_with(store, a_task())
    steps = {"drain": AsyncMock(), "stop": AsyncMock()}
    steps[broken].side_effect = RuntimeError("a bug")
    monkeypatch.setattr(worker.deliveries, "drain", steps["drain"])
    monkeypatch.setattr(worker.throttle, "stop", steps["stop"])
    with pytest.raises(RuntimeError):
        await worker.stop(60)
    assert [step.await_count for step in steps.values()] == [1, 1]


async def test_with_many_topics_the_sleep_lasts_until_the_first_is_due(store: StoreFixture) -> None:
    worker = ManualWorker(store, FakeSender(), slots=4)
    await store.tasks.create([a_task(topic=f"topic-{number}", delay=1 + number) for number in range(200)])
    assert await worker.claimer.tick(NOW) == (0, NOW + 1000)


async def test_a_hanging_topic_does_not_delay_another(store: StoreFixture) -> None:
    sender = FakeSender()
    sender.may_answer.clear()
    worker = ManualWorker(store, sender, slots=16)
    await store.tasks.create([a_task(topic="hangs") for _ in range(100)])
    for _ in range(4):
        await worker.tick()
    healthy = a_task(topic="healthy", created_at=NOW)
    await store.tasks.create([healthy])
    await worker.tick()
    await asyncio.sleep(0)
    assert healthy.id in [call.id for call in sender.calls]
    sender.may_answer.set()
    await worker.deliveries.drain(60)


def requests_for(store: StoreFixture, task: Task) -> list[ClaimRequest]:
    return [ClaimRequest(task.topic, store.keys.shard_of(task.id).index, 1)]
