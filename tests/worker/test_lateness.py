"""The lateness of first deliveries, by what held their tasks between the time when they were due and their claim."""

from __future__ import annotations

import pytest

from later.core.held import Held
from tests.builders import NOW, a_task
from tests.store_fixture import StoreFixture, hold_topic
from tests.worker.workers import FakeSender, ManualWorker, busy


@pytest.fixture
def shards() -> int:
    """Return 4: what held a task does not depend on the shards."""
    return 4


def first_deliveries(worker: ManualWorker) -> dict[str, int]:
    """Return the number of first deliveries by what held them; without those that are 0."""
    value = worker.metrics.registry.get_sample_value
    counts = {held.value: value("later_lateness_seconds_count", {"held": held.value}) for held in Held}
    return {held: int(count) for held, count in counts.items() if count}


async def create(store: StoreFixture, count: int, delay: float = 0) -> None:
    await store.tasks.create([a_task(delay=delay) for _ in range(count)])


async def pass_time(worker: ManualWorker, until: int, step: int = 100) -> None:
    """Work until `until`, reading the policies each second, as the tickers do."""
    while worker.at < until:
        worker.at += step
        if worker.at % 1000 < step:
            await worker.policies.read()
        await worker.upkeep.resumer.tick(worker.at)
        await worker.work()
        await worker.throttle.stop()


async def test_tasks_of_topics_without_limits_are_held_by_nothing(store: StoreFixture) -> None:
    await create(store, 5)
    worker = ManualWorker(store, FakeSender(), slots=1)
    await pass_time(worker, NOW + 1000)
    assert first_deliveries(worker) == {"no": 5}


async def test_tasks_that_waited_for_their_topics_rate_were_held_by_it(store: StoreFixture) -> None:
    await create(store, 5)
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", rate=10)
    await pass_time(worker, NOW + 1000)
    assert first_deliveries(worker) == {"no": 1, "rate": 4}


async def test_tasks_that_waited_for_their_topics_concurrency_were_held_by_it(store: StoreFixture) -> None:
    await create(store, 5)
    worker = ManualWorker(store, sender := FakeSender())
    await worker.set_policy("order", concurrency=1)
    sender.may_answer.clear()
    await worker.tick()
    worker.at += 10
    await worker.tick()
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    await pass_time(worker, NOW + 3000)
    assert first_deliveries(worker) == {"no": 1, "concurrency": 4}


@pytest.mark.parametrize("ramp", [0, 10])
async def test_tasks_that_were_due_during_a_pause_were_held_by_it(store: StoreFixture, ramp: int) -> None:
    await create(store, 3)
    worker = ManualWorker(store, FakeSender())
    await worker.set_policy("order", paused=True, ramp=ramp)
    await pass_time(worker, NOW + 2000)
    await create(store, 2, delay=3)
    await pass_time(worker, NOW + 6000)
    await worker.set_policy("order", paused=False, ramp=ramp)
    await pass_time(worker, NOW + 15_000)
    assert first_deliveries(worker) == {"pause": 5}


async def test_a_pause_that_another_worker_noticed_is_known(store: StoreFixture) -> None:
    await create(store, 3)
    other, worker = (ManualWorker(store, FakeSender(), instance=name) for name in ("other", "this"))
    await worker.set_policy("order", paused=True, ramp=0)
    await other.policies.read()
    for claimer in (other.claimer, worker.claimer):
        await claimer.tick(NOW)
    await worker.set_policy("order", paused=False)
    await pass_time(worker, NOW + 5000)
    assert first_deliveries(worker) == {"pause": 3}


@pytest.mark.parametrize("ramp", [0, 10])
async def test_tasks_that_were_due_during_a_retry_after_were_held_by_their_receiver(
    store: StoreFixture, ramp: int
) -> None:
    await create(store, 1)
    worker = ManualWorker(store, FakeSender(busy(5000)))
    await worker.set_policy("order", ramp=ramp)
    await worker.work()
    await create(store, 4, delay=1)
    await pass_time(worker, NOW + 20_000)
    assert first_deliveries(worker) == {"no": 1, "receiver": 4}


async def test_a_retry_after_that_another_worker_received_is_known(store: StoreFixture) -> None:
    await create(store, 3)
    await hold_topic(store, "order", NOW + 2000)
    worker = ManualWorker(store, FakeSender())
    await pass_time(worker, NOW + 4000)
    assert first_deliveries(worker) == {"receiver": 3}


async def test_tasks_due_after_a_hold_are_held_by_nothing(store: StoreFixture) -> None:
    await hold_topic(store, "order", NOW + 500)
    await create(store, 1)
    worker = ManualWorker(store, FakeSender())
    await pass_time(worker, NOW + 3000)
    await create(store, 2, delay=10)
    await pass_time(worker, NOW + 12_000)
    assert first_deliveries(worker) == {"no": 2, "receiver": 1}


async def test_a_rate_that_another_worker_has_used_up_is_known(store: StoreFixture) -> None:
    await create(store, 5)
    other, worker = (ManualWorker(store, FakeSender(), instance=name) for name in ("other", "this"))
    await other.set_policy("order", rate=1)
    await worker.policies.read()
    await other.claimer.tick(NOW)
    await other.deliveries.drain(60)
    await pass_time(worker, NOW + 5000)
    assert first_deliveries(worker) == {"rate": 4}
