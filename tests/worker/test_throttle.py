"""Pauses, rates, concurrency and `Retry-After` over several workers on one store, with time as a value."""

from __future__ import annotations

import msgspec
import pytest

from later.core.origin import Origin
from later.core.policy import Policy
from later.core.policy_scopes import topic_scope
from later.store.keys import Bucket
from later.store.types import ClaimRequest, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import read_contents
from tests.store_fixture import StoreFixture
from tests.worker.workers import FAILED, FakeSender, ManualWorker, busy


async def create_due(store: StoreFixture, count: int, topic: str = "order") -> None:
    for start in range(0, count, 500):
        size = min(500, count - start)
        await store.tasks.create([a_task(topic=topic, id=f"{topic}-{start + n}") for n in range(size)])


async def pass_time(workers: list[ManualWorker], until: int, step: int = 20) -> None:
    """Tick all workers every `step` ms, read the policies every second, and let deliveries end before the next tick."""
    at = workers[0].at
    while at < until:
        at += step
        for worker in workers:
            worker.at = at
            if at % 1000 < step:
                await worker.policies.read()
            await worker.claimer.tick(at)
            await worker.upkeep.resumer.tick(at)
        for worker in workers:
            await worker.deliveries.drain(60)


def build_workers(store: StoreFixture, sender: FakeSender, count: int = 3, slots: int = 256) -> list[ManualWorker]:
    return [ManualWorker(store, sender, instance=f"w{n}", slots=slots) for n in range(count)]


async def read_policies(workers: list[ManualWorker]) -> None:
    for worker in workers:
        await worker.policies.read()


class TestRate:
    @pytest.mark.parametrize(("rate", "seconds"), [(10, 6), (500, 2)])
    async def test_a_rate_is_exact_over_workers_and_shards(self, store: StoreFixture, rate: int, seconds: int) -> None:
        await create_due(store, rate * seconds * 2)
        workers = build_workers(store, sender := FakeSender())
        await workers[0].set_policy("order", rate=rate)
        await read_policies(workers)
        await pass_time(workers, NOW + seconds * 1000, step=50)
        assert len(sender.calls) == pytest.approx(rate * seconds, rel=0.05)
        halfway = sum(call.at <= NOW + seconds * 500 for call in sender.calls)
        assert halfway == pytest.approx(len(sender.calls) / 2, rel=0.1)

    async def test_few_tasks_are_delivered_at_once_and_unused_permits_returned(self, store: StoreFixture) -> None:
        await create_due(store, 3)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", rate=1000)
        await pass_time([worker], NOW + 100)
        assert len(sender.calls) == 3
        await store.tasks.create([a_task(id=f"more-{n}") for n in range(97)])
        await pass_time([worker], NOW + 250)
        assert len(sender.calls) == 100

    async def test_a_limited_topic_is_not_claimed_before_there_are_permits(self, store: StoreFixture) -> None:
        await create_due(store, 100)
        worker = ManualWorker(store, FakeSender())
        await worker.set_policy("order", rate=1)
        await worker.work()
        result = await worker.claimer.tick(NOW + 10)
        assert result.moved == 0
        assert result.next_due is not None
        assert NOW + 900 <= result.next_due <= NOW + 1010

    async def test_a_limited_topic_does_not_delay_another(self, store: StoreFixture) -> None:
        await create_due(store, 500)
        await create_due(store, 200, "healthy")
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", rate=1)
        await pass_time([worker], NOW + 30)
        assert sum(call.id.startswith("healthy") for call in sender.calls) == 200


class TestConcurrency:
    async def test_all_workers_together_deliver_no_more_than_the_limit(self, store: StoreFixture) -> None:
        await create_due(store, 100)
        workers = build_workers(store, sender := FakeSender())
        await workers[0].set_policy("order", concurrency=5)
        await read_policies(workers)
        sender.may_answer.clear()
        for at in range(NOW, NOW + 1000, 50):
            for worker in workers:
                worker.at = at
                await worker.claimer.tick(at)
        assert sum(worker.fair_share.total_in_use for worker in workers) == 5
        sender.may_answer.set()
        for worker in workers:
            await worker.deliveries.drain(60)
            await worker.throttle.stop()
        assert await store.new_permits().in_use(["order"], NOW + 1000) == {"order": 0}

    async def test_the_end_of_a_delivery_lets_another_start_at_once(self, store: StoreFixture) -> None:
        await create_due(store, 20)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", concurrency=1)
        woken: list[bool] = []
        worker.deliveries.wake = lambda: woken.append(True)
        for _ in range(19):
            sender.may_answer.clear()
            await worker.claimer.tick(NOW)
            assert await worker.claimer.tick(NOW) == (0, NOW + 100)
            sender.may_answer.set()
            await worker.deliveries.drain(60)
        assert len(sender.calls) == 19
        assert woken == [True] * 19

    async def test_permits_of_a_lost_worker_expire_with_its_leases(self, store: StoreFixture) -> None:
        await create_due(store, 10)
        lost, other = build_workers(store, sender := FakeSender(), 2)
        await lost.set_policy("order", concurrency=5)
        await read_policies([other])
        sender.may_answer.clear()
        await lost.claimer.tick(NOW)
        other.at = NOW + 29_000
        assert (await other.claimer.tick(other.at)).moved == 0
        other.at = NOW + 30_200
        for _ in range(3):
            await other.claimer.tick(other.at)
        assert other.fair_share.total_in_use == 5
        sender.may_answer.set()
        await other.deliveries.drain(60)
        await lost.deliveries.drain(60)

    async def test_many_topics_without_permits_do_not_delay_a_healthy_one(self, store: StoreFixture) -> None:
        topics = [f"t{n}" for n in range(20)]
        for topic in topics:
            await create_due(store, 3, topic)
        holder, worker = build_workers(store, sender := FakeSender(), 2, slots=64)
        for topic in topics:
            await holder.set_policy(topic, concurrency=1)
        await read_policies([worker])
        sender.may_answer.clear()
        for _ in range(5):
            await holder.claimer.tick(NOW)
        assert holder.fair_share.total_in_use == 20
        small = ManualWorker(store, healthy := FakeSender(), instance="small", slots=4)
        await read_policies([small])
        await create_due(store, 8, "healthy")
        await pass_time([small], NOW + 300)
        assert len(healthy.calls) == 8
        sender.may_answer.set()
        await holder.deliveries.drain(60)


class TestPaused:
    async def test_a_paused_topic_is_neither_claimed_nor_read_again(self, store: StoreFixture) -> None:
        await create_due(store, 50)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", paused=True)
        await worker.work()
        assert sender.calls == []
        await store.redis.config_resetstat()
        assert await worker.claimer.tick(NOW + 10) == (0, None)
        stats = await store.redis.info("commandstats")
        assert {name for name in stats if "config" not in name} == {"cmdstat_time", "cmdstat_zrange"}

    async def test_tasks_are_created_during_a_pause(self, store: StoreFixture) -> None:
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", paused=True)
        await create_due(store, 5)
        await worker.work()
        await create_due(store, 10)
        assert await worker.claimer.tick(NOW + 10) == (0, None)
        assert (sender.calls, len((await read_contents(store)).pool)) == ([], 10)

    async def test_tasks_expire_during_a_pause(self, store: StoreFixture) -> None:
        task = a_task(delay=1, ttl=5)
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", paused=True)
        worker.at = NOW + 2_000
        await worker.work()
        worker.at = NOW + 5_000
        await worker.work()
        assert ((await worker.find(task)).state, sender.calls) == (Bucket.DEAD, [])

    async def test_deliveries_in_flight_end_and_failed_tasks_wait(self, store: StoreFixture) -> None:
        task = a_task()
        await store.tasks.create([task])
        worker = ManualWorker(store, sender := FakeSender(FAILED))
        sender.may_answer.clear()
        await worker.tick()
        await worker.set_policy("order", paused=True)
        sender.may_answer.set()
        await worker.deliveries.drain(60)
        worker.at = NOW + 60_000
        await worker.work()
        assert (await worker.find(task)).state is Bucket.DELAY
        assert len(sender.calls) == 1

    async def test_a_topic_resumed_by_another_process_starts_slowly(self, store: StoreFixture) -> None:
        await create_due(store, 3000)
        workers = build_workers(store, sender := FakeSender(), 2)
        await workers[0].set_policy("order", paused=True)
        await read_policies(workers)
        await pass_time(workers, NOW + 50)
        await store.new_policy_book().change(topic_scope("order"), lambda before: before.merge({"paused": None}))
        await read_policies(workers)
        since = workers[0].at
        await pass_time(workers, since + 1000)
        assert sender.calls == []
        await pass_time(workers, since + 4000, step=50)
        seconds = [sum(since + 1100 + s <= c.at < since + 1100 + s + 900 for c in sender.calls) for s in (0, 900, 1800)]
        assert 0 < seconds[0] < seconds[1] < seconds[2]
        assert seconds[0] <= 2 * (1 + 256 * 10 * 0.9 * 0.9 / 20 + 1)

    async def test_a_topic_without_a_ramp_resumes_at_full_speed(self, store: StoreFixture) -> None:
        await create_due(store, 80)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", paused=True, ramp=0)
        await worker.work()
        await worker.set_policy("order", paused=False)
        await worker.upkeep.resumer.tick(NOW)
        worker.at = NOW + 100
        await worker.work()
        assert len(sender.calls) == 80

    async def test_a_namespaces_pause_applies_to_its_topics_unless_one_overrides_it(self, store: StoreFixture) -> None:
        await create_due(store, 3, "shop/a")
        await create_due(store, 3, "shop/b")
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_namespace_policy("shop", paused=True)
        await worker.set_policy("shop/b", paused=False, ramp=0)
        await worker.work()
        assert {call.id[:6] for call in sender.calls} == {"shop/b"}


class TestRetryAfter:
    async def test_no_worker_calls_a_receiver_before_its_retry_after_is_over(self, store: StoreFixture) -> None:
        await create_due(store, 600)
        workers = build_workers(store, sender := FakeSender(busy(5_000)), 2)
        await workers[0].work()
        calls_before = len(sender.calls)
        workers[1].at = NOW + 100
        await pass_time(workers, NOW + 5_000, step=50)
        assert len(sender.calls) == calls_before
        await pass_time(workers, NOW + 5_500)
        assert 0 < len(sender.calls) - calls_before <= 2 * 40

    async def test_tasks_claimed_while_a_retry_after_arrives_are_put_back(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create_due(store, 100)
        worker = ManualWorker(store, sender := FakeSender())
        claim = worker.store.tasks.claim

        async def claim_and_hold(requests: list[ClaimRequest], now: int, lease_end: int, max_bytes: int) -> object:
            results = await claim(requests, now, lease_end, max_bytes)
            await worker.held_origins.hold("order", Origin("http", "127.0.0.1", 8888), NOW + 1000)
            return results

        with monkeypatch.context() as patched:
            patched.setattr(worker.store.tasks, "claim", claim_and_hold)
            await worker.work()
        assert sender.calls == []
        worker.at = NOW + 1000
        await worker.work()
        assert len(sender.calls) == 1, "the slow start allows one delivery at its beginning"
        worker.at = NOW + 3000
        await worker.work()
        assert len(sender.calls) > 1

    async def test_a_busy_answer_without_retry_after_delays_its_task_alone(self, store: StoreFixture) -> None:
        await create_due(store, 300)
        worker = ManualWorker(store, sender := FakeSender(busy()))
        await pass_time([worker], NOW + 100)
        assert len(sender.calls) == 300

    async def test_a_busy_answer_with_later_after_delays_its_task_alone(self, store: StoreFixture) -> None:
        await create_due(store, 300)
        answer = msgspec.structs.replace(busy(), later_after_ms=60_000)
        worker = ManualWorker(store, sender := FakeSender(answer))
        await pass_time([worker], NOW + 100)
        assert len(sender.calls) == 300
        (record,) = await store.lookup.query([sender.calls[0].id])
        assert isinstance(record, TaskRecord)
        assert record.state is Bucket.ERROR
        assert NOW + 60_000 <= record.score <= NOW + 60_100

    async def test_other_topics_are_delivered_during_a_retry_after(self, store: StoreFixture) -> None:
        await create_due(store, 1)
        worker = ManualWorker(store, sender := FakeSender(busy(60_000)))
        await worker.work()
        await create_due(store, 5, "other")
        await worker.work()
        assert len(sender.calls) == 6


class TestRaisedLimits:
    async def test_a_raised_rate_is_reached_gradually(self, store: StoreFixture) -> None:
        await create_due(store, 3000)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", rate=10, ramp=4)
        await pass_time([worker], NOW + 1000)
        calls_before = len(sender.calls)
        assert calls_before == pytest.approx(10, abs=1)
        await worker.set_policy("order", rate=500)
        await pass_time([worker], NOW + 6000, step=50)
        counts = [sum(NOW + s <= call.at < NOW + s + 1000 for call in sender.calls) for s in range(1000, 6000, 1000)]
        assert counts == sorted(counts)
        assert counts[0] == pytest.approx(10 + 490 / 8, rel=0.25)
        assert counts[4] == pytest.approx(500, rel=0.05)

    async def test_a_removed_rate_is_left_gradually(self, store: StoreFixture) -> None:
        await create_due(store, 2000)
        worker = ManualWorker(store, sender := FakeSender())
        await worker.set_policy("order", rate=10, ramp=10)
        await pass_time([worker], NOW + 500)
        await worker.set_policy("order", rate=None)
        await pass_time([worker], NOW + 1000)
        assert 5 < len(sender.calls) < 5 + 60

    async def test_the_daemons_policy_limits_every_topic(self, store: StoreFixture) -> None:
        await create_due(store, 10, "a")
        await create_due(store, 10, "b")
        worker = ManualWorker(store, sender := FakeSender(), policy=Policy(concurrency=2))
        sender.may_answer.clear()
        await worker.tick()
        assert [worker.fair_share.in_use(topic) for topic in ("a", "b")] == [2, 2]
        sender.may_answer.set()
        await worker.deliveries.drain(60)


async def test_a_topic_that_an_outdated_worker_holds_again_is_resumed_again(store: StoreFixture) -> None:
    await create_due(store, 5)
    worker = ManualWorker(store, sender := FakeSender())
    await worker.set_policy("order", paused=True, ramp=0)
    await worker.work()
    await worker.set_policy("order", paused=False)
    await worker.upkeep.resumer.tick(NOW)
    await store.new_permits("late").hold_paused([("order", shard.index) for shard in store.keys.shards])
    worker.at = NOW + 500
    await worker.upkeep.resumer.tick(worker.at)
    await worker.work()
    assert len(sender.calls) == 5


async def test_damaged_permits_of_one_topic_stop_no_other(store: StoreFixture) -> None:
    await create_due(store, 3, "broken")
    await create_due(store, 3, "healthy")
    worker = ManualWorker(store, sender := FakeSender())
    await worker.set_policy("broken", concurrency=1)
    await store.redis.set(store.keys.permits("broken").decode(), "no hash")
    await worker.work()
    assert {call.id for call in sender.calls} == {"healthy-0", "healthy-1", "healthy-2"}
    await store.redis.delete(store.keys.permits("broken").decode())
    worker.at += 1000
    await worker.work()
    assert any(call.id.startswith("broken") for call in sender.calls)
