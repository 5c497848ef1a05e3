"""Pauses, rates, concurrency and waits over several workers on one store, with time as a value."""

from __future__ import annotations

import pytest

from later.core.policy import Policy
from later.core.policy_scopes import namespace_scope, topic_scope
from later.store.keys import Bucket
from tests.builders import NOW, a_task
from tests.store.sight import see
from tests.store_fixture import StoreFixture
from tests.worker.workers import FAILED, ManualWorker, Receivers, busy

LOW = 2
"""The clock's interval makes everything up to this many ms late, never early."""


async def set_policy(worker: ManualWorker, name: str, **fields: object) -> None:
    await worker.policies.change(topic_scope(name), lambda before: before.merge(fields))  # type: ignore[arg-type]  # as written


async def due(store: StoreFixture, count: int, topic: str = "order") -> None:
    for start in range(0, count, 500):
        some = min(500, count - start)
        await store.tasks.create([a_task(topic=topic, id=f"{topic}-{start + n}") for n in range(some)])


async def pass_time(workers: list[ManualWorker], until: int, step: int = 10) -> None:
    """All of them tick every `step` ms, and read the policies every second; deliveries end before the next tick."""
    at = workers[0].at
    while at < until:
        at += step
        for worker in workers:
            worker.at = at
            if at % 1000 < step:
                await worker.policies.read()
            await worker.claimer.tick(at)
            await worker.resumer.tick(at)
        for worker in workers:
            await worker.deliveries.drain(60)


def several(store: StoreFixture, receivers: Receivers, count: int = 3, slots: int = 256) -> list[ManualWorker]:
    return [ManualWorker(store, receivers, instance=f"w{n}", slots=slots) for n in range(count)]


async def all_know(workers: list[ManualWorker]) -> None:
    for worker in workers:
        await worker.policies.read()


class TestRate:
    @pytest.mark.parametrize(("rate", "seconds"), [(10, 10), (1000, 2)])
    async def test_it_is_exact_over_all_workers_and_shards(self, store: StoreFixture, rate: int, seconds: int) -> None:
        await due(store, rate * seconds * 2)
        workers = several(store, receivers := Receivers())
        await set_policy(workers[0], "order", rate=rate)
        await all_know(workers)
        await pass_time(workers, NOW + seconds * 1000)
        assert len(receivers.calls) == pytest.approx(rate * seconds, rel=0.05)
        halfway = sum(call.at <= NOW + seconds * 500 for call in receivers.calls)
        assert halfway == pytest.approx(len(receivers.calls) / 2, rel=0.1)

    async def test_few_tasks_are_delivered_at_once_and_the_rest_of_the_permits_handed_back(
        self, store: StoreFixture
    ) -> None:
        await due(store, 3)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", rate=1000)
        await pass_time([worker], NOW + 100)
        assert len(receivers.calls) == 3
        await store.tasks.create([a_task(id=f"more-{n}") for n in range(97)])
        await pass_time([worker], NOW + 250)
        assert len(receivers.calls) == 100

    async def test_a_limited_topic_is_not_looked_at_before_there_is_more(self, store: StoreFixture) -> None:
        await due(store, 100)
        worker = ManualWorker(store, Receivers())
        await set_policy(worker, "order", rate=1)
        await worker.work()
        ticked = await worker.claimer.tick(NOW + 10)
        assert ticked.moved == 0
        assert ticked.next_due is not None
        assert NOW + 900 <= ticked.next_due <= NOW + 1010

    async def test_a_healthy_topic_beside_it_is_not_held_up(self, store: StoreFixture) -> None:
        await due(store, 500)
        await due(store, 200, "healthy")
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", rate=1)
        await pass_time([worker], NOW + 30)
        assert sum(call.id.startswith("healthy") for call in receivers.calls) == 200


class TestConcurrency:
    async def test_no_more_are_under_way_than_it_says_in_all_workers_together(self, store: StoreFixture) -> None:
        await due(store, 100)
        workers = several(store, receivers := Receivers())
        await set_policy(workers[0], "order", concurrency=5)
        await all_know(workers)
        receivers.may_answer.clear()
        for at in range(NOW, NOW + 1000, 50):
            for worker in workers:
                worker.at = at
                await worker.claimer.tick(at)
        assert sum(worker.fair_share.total_in_use for worker in workers) == 5
        receivers.may_answer.set()
        for worker in workers:
            await worker.deliveries.drain(60)
            await worker.throttle.stop()
        assert await store.permits_of().in_use(["order"], NOW + 1000) == {"order": 0}

    async def test_a_delivery_that_ends_lets_another_begin_at_once(self, store: StoreFixture) -> None:
        await due(store, 20)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", concurrency=1)
        woken: list[bool] = []
        worker.deliveries.on_slot_free = woken.append
        for _ in range(19):
            receivers.may_answer.clear()
            await worker.claimer.tick(NOW)
            assert await worker.claimer.tick(NOW) == (0, NOW + 100)
            receivers.may_answer.set()
            await worker.deliveries.drain(60)
        assert len(receivers.calls) == 19
        assert woken == [True] * 19

    async def test_a_worker_that_is_lost_frees_its_permits_with_its_leases(self, store: StoreFixture) -> None:
        await due(store, 10)
        lost, other = several(store, receivers := Receivers(), 2)
        await set_policy(lost, "order", concurrency=5)
        await all_know([other])
        receivers.may_answer.clear()
        await lost.claimer.tick(NOW)
        other.at = NOW + 29_000
        assert (await other.claimer.tick(other.at)).moved == 0
        other.at = NOW + 30_200
        for _ in range(3):
            await other.claimer.tick(other.at)
        assert other.fair_share.total_in_use == 5
        receivers.may_answer.set()
        await other.deliveries.drain(60)
        await lost.deliveries.drain(60)

    async def test_many_topics_that_wait_for_others_do_not_crowd_a_healthy_one_out(self, store: StoreFixture) -> None:
        topics = [f"t{n}" for n in range(20)]
        for topic in topics:
            await due(store, 3, topic)
        holder, worker = several(store, receivers := Receivers(), 2, slots=64)
        for topic in topics:
            await set_policy(holder, topic, concurrency=1)
        await all_know([worker])
        receivers.may_answer.clear()
        for _ in range(5):
            await holder.claimer.tick(NOW)
        assert holder.fair_share.total_in_use == 20
        small = ManualWorker(store, healthy := Receivers(), instance="small", slots=4)
        await all_know([small])
        await due(store, 8, "healthy")
        await pass_time([small], NOW + 300)
        assert len(healthy.calls) == 8
        receivers.may_answer.set()
        await holder.deliveries.drain(60)


class TestPaused:
    async def test_nothing_is_claimed_and_nothing_asks_for_it_any_more(self, store: StoreFixture) -> None:
        await due(store, 50)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", paused=True)
        await worker.work()
        assert receivers.calls == []
        await store.redis.config_resetstat()
        assert await worker.claimer.tick(NOW + 10) == (0, None)
        stats = await store.redis.info("commandstats")
        assert {name for name in stats if "config" not in name} == {"cmdstat_time", "cmdstat_zrange"}

    async def test_creating_goes_on(self, store: StoreFixture) -> None:
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", paused=True)
        await due(store, 5)
        await worker.work()
        await due(store, 10)
        assert await worker.claimer.tick(NOW + 10) == (0, None)
        assert (receivers.calls, len((await see(store)).pool)) == ([], 10)

    async def test_a_ttl_ends_all_the_same(self, store: StoreFixture) -> None:
        task = a_task(delay=1, ttl=5)
        await store.tasks.create([task])
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", paused=True)
        worker.at = NOW + 2_000
        await worker.work()
        worker.at = NOW + 5_000
        await worker.work()
        assert ((await worker.find(task)).state, receivers.calls) == (Bucket.DEAD, [])

    async def test_what_is_under_way_ends_and_what_fails_waits_with_the_rest(self, store: StoreFixture) -> None:
        task = a_task()
        await store.tasks.create([task])
        worker = ManualWorker(store, receivers := Receivers(FAILED))
        receivers.may_answer.clear()
        await worker.tick()
        await set_policy(worker, "order", paused=True)
        receivers.may_answer.set()
        await worker.deliveries.drain(60)
        worker.at = NOW + 60_000
        await worker.work()
        assert (await worker.find(task)).state is Bucket.DELAY
        assert len(receivers.calls) == 1

    async def test_after_a_resume_by_any_process_it_comes_back_slowly(self, store: StoreFixture) -> None:
        await due(store, 3000)
        workers = several(store, receivers := Receivers(), 2)
        await set_policy(workers[0], "order", paused=True)
        await all_know(workers)
        await pass_time(workers, NOW + 50)
        await store.policies_anew().change(topic_scope("order"), lambda before: before.merge({"paused": None}))
        await all_know(workers)
        since = workers[0].at
        await pass_time(workers, since + 1000)
        assert receivers.calls == []
        await pass_time(workers, since + 4000, step=20)
        seconds = [
            sum(since + 1100 + s <= c.at < since + 1100 + s + 900 for c in receivers.calls) for s in (0, 900, 1800)
        ]
        assert 0 < seconds[0] < seconds[1] < seconds[2]
        assert seconds[0] <= 2 * (1 + 256 * 10 * 0.9 * 0.9 / 20 + 1)

    async def test_without_a_ramp_it_is_back_at_once(self, store: StoreFixture) -> None:
        await due(store, 150)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", paused=True, ramp=0)
        await worker.work()
        await set_policy(worker, "order", paused=False)
        await worker.resumer.tick(NOW)
        worker.at = NOW + 100
        await worker.work()
        assert len(receivers.calls) == 150

    async def test_a_namespaces_pause_is_that_of_its_topics_and_one_of_them_may_be_lifted(
        self, store: StoreFixture
    ) -> None:
        await due(store, 3, "shop/a")
        await due(store, 3, "shop/b")
        worker = ManualWorker(store, receivers := Receivers())
        await worker.policies.change(namespace_scope("shop"), lambda before: before.merge({"paused": True}))
        await set_policy(worker, "shop/b", paused=False, ramp=0)
        await worker.work()
        assert {call.id[:6] for call in receivers.calls} == {"shop/b"}


class TestWaits:
    async def test_no_worker_calls_a_receiver_that_asked_for_a_pause_before_it_is_over(
        self, store: StoreFixture
    ) -> None:
        await due(store, 600)
        workers = several(store, receivers := Receivers(busy(5_000)), 2)
        await workers[0].work()
        before = len(receivers.calls)
        workers[1].at = NOW + 100
        await pass_time(workers, NOW + 5_000)
        assert len(receivers.calls) == before
        await pass_time(workers, NOW + 5_500)
        after = len(receivers.calls) - before
        assert 0 < after <= 2 * 40

    async def test_a_busy_answer_without_a_pause_holds_its_task_alone(self, store: StoreFixture) -> None:
        await due(store, 300)
        worker = ManualWorker(store, receivers := Receivers(busy()))
        await pass_time([worker], NOW + 100)
        assert len(receivers.calls) == 300

    async def test_other_topics_go_on(self, store: StoreFixture) -> None:
        await due(store, 1)
        worker = ManualWorker(store, receivers := Receivers(busy(60_000)))
        await worker.work()
        await due(store, 5, "other")
        await worker.work()
        assert len(receivers.calls) == 6


class TestRaisedLimits:
    async def test_a_rate_that_is_raised_is_reached_in_steps(self, store: StoreFixture) -> None:
        await due(store, 3000)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", rate=10, ramp=4)
        await pass_time([worker], NOW + 1000)
        before = len(receivers.calls)
        assert before == pytest.approx(10, abs=1)
        await set_policy(worker, "order", rate=500)
        await pass_time([worker], NOW + 6000)
        each = [sum(NOW + s <= call.at < NOW + s + 1000 for call in receivers.calls) for s in range(1000, 6000, 1000)]
        assert each == sorted(each)
        assert each[0] == pytest.approx(10 + 490 / 8, rel=0.25)
        assert each[4] == pytest.approx(500, rel=0.05)

    async def test_one_that_is_lifted_too(self, store: StoreFixture) -> None:
        await due(store, 2000)
        worker = ManualWorker(store, receivers := Receivers())
        await set_policy(worker, "order", rate=10, ramp=10)
        await pass_time([worker], NOW + 500)
        await set_policy(worker, "order", rate=None)
        await pass_time([worker], NOW + 1000)
        assert 5 < len(receivers.calls) < 5 + 60

    async def test_a_policy_of_the_daemons_limits_every_topic(self, store: StoreFixture) -> None:
        await due(store, 10, "a")
        await due(store, 10, "b")
        worker = ManualWorker(store, receivers := Receivers(), policy=Policy(concurrency=2))
        receivers.may_answer.clear()
        await worker.tick()
        assert [worker.fair_share.in_use(topic) for topic in ("a", "b")] == [2, 2]
        receivers.may_answer.set()
        await worker.deliveries.drain(60)


async def test_a_worker_that_did_not_know_yet_and_holds_a_topic_once_more_lets_it_go_again(store: StoreFixture) -> None:
    await due(store, 5)
    worker = ManualWorker(store, receivers := Receivers())
    await set_policy(worker, "order", paused=True, ramp=0)
    await worker.work()
    await set_policy(worker, "order", paused=False)
    await worker.resumer.tick(NOW)
    await store.permits_of("late").hold_paused([("order", shard.index) for shard in store.keys.shards])
    worker.at = NOW + 500
    await worker.resumer.tick(worker.at)
    await worker.work()
    assert len(receivers.calls) == 5


async def test_what_is_amiss_with_one_topics_permits_stops_no_other(store: StoreFixture) -> None:
    await due(store, 3, "broken")
    await due(store, 3, "healthy")
    worker = ManualWorker(store, receivers := Receivers())
    await set_policy(worker, "broken", concurrency=1)
    await store.redis.set(store.keys.permits("broken").decode(), "no hash")
    await worker.work()
    assert {call.id for call in receivers.calls} == {"healthy-0", "healthy-1", "healthy-2"}
    await store.redis.delete(store.keys.permits("broken").decode())
    worker.at += 1000
    await worker.work()
    assert any(call.id.startswith("broken") for call in receivers.calls)
