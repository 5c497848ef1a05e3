"""Receivers of one topic do not wait for each other, in a worker on a real store, with time as a value."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from later.core.errors import LaterError, StoreDown
from later.core.origin import Origin
from later.core.policy import Policy
from later.core.retry import Outcome
from later.core.task import Task
from later.store.keys import Bucket
from later.store.origin_holds import MAX_HOLDS
from later.store.types import ClaimResult, Settlement, TaskRecord
from later.worker.origin_share import MIN_PROBE
from tests.builders import NOW, a_task
from tests.store.inspection import assert_sound
from tests.store_fixture import StoreFixture, hold_topic
from tests.worker.workers import DONE, LEASE_MS, MAX_LATE_MS, FakeSender, ManualWorker, busy

WELL = "http://well.example/"
HANGS = "http://hangs.example/"
MANY_HANG = [f"http://host-{number}.example/" for number in range(40)]
THOUSAND_HANG = [f"http://host-{number}.example/" for number in range(1000)]


@pytest.fixture
def shards() -> int:
    """Return 4: with one shard, everything is the same with fewer calls."""
    return 4


class OriginSender(FakeSender):
    """A sender to receivers of which some hang, and some give an answer of their own."""

    def __init__(self, hangs: Iterable[str] = (), answers: dict[str, Outcome] | None = None) -> None:
        super().__init__()
        self.hangs = set(hangs)
        self.answers = answers or {}
        self.callbacks: list[tuple[str, int]] = []
        self.hanging = 0
        self._released = asyncio.Event()

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        self.callbacks.append((task.callback, now))
        if task.callback in self.hangs:
            self.hanging += 1
            await self._released.wait()
            self.hanging -= 1
        return self.answers.get(task.callback, DONE)

    def recover(self) -> None:
        """Let calls that hang end, and others hang no more."""
        self.hangs.clear()
        self._released.set()

    def calls_to(self, callback: str) -> list[int]:
        return [at for called, at in self.callbacks if called == callback]


async def create_due(store: StoreFixture, count: int, *callbacks: str, delay: float = 0) -> None:
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        await store.tasks.create([a_task(delay=delay, callback=callbacks[n % len(callbacks)]) for n in numbers])


async def tick(worker: ManualWorker, sender: OriginSender) -> None:
    """Tick until nothing is due any more, with all calls at their end that do not hang."""
    while True:
        moved, next_due = await worker.claimer.tick(worker.at)
        for _ in range(100_000):
            if worker.fair_share.total_in_use == sender.hanging:
                break
            await asyncio.sleep(0)
        if not moved or next_due is None or next_due > worker.at:
            return


async def pass_time(workers: list[ManualWorker], sender: OriginSender, until: int, step: int = 20) -> None:
    while workers[0].at < until:
        for worker in workers:
            worker.at += step
            if worker.at % 1000 < step:
                await worker.policies.read()
            await tick(worker, sender)


def put_backs(*workers: ManualWorker) -> int:
    name, labels = "later_tasks_put_back_total", {"topic": "order"}
    return int(sum(worker.metrics.registry.get_sample_value(name, labels) or 0 for worker in workers))


async def end(worker: ManualWorker, sender: OriginSender) -> None:
    sender.recover()
    await worker.deliveries.drain(60)


@pytest.mark.parametrize(
    ("hanging", "most_late_ms"),
    [([HANGS], 300), (MANY_HANG, 500), (THOUSAND_HANG, 500)],
    ids=["one", "forty", "thousand"],
)
async def test_receivers_that_hang_do_not_delay_another_one_of_their_topic(
    store: StoreFixture, hanging: list[str], most_late_ms: int
) -> None:
    await create_due(store, 1500, *hanging)
    for number in range(100):
        await create_due(store, 1, WELL, delay=0.5 + number / 50)
    worker = ManualWorker(store, sender := OriginSender(hanging))
    await pass_time([worker], sender, NOW + 2520)
    called = sender.calls_to(WELL)
    assert len(called) == 100
    assert max(at - NOW - 500 - number * 20 for number, at in enumerate(called)) <= most_late_ms
    assert sender.hanging < 192
    await end(worker, sender)


async def test_a_burst_to_one_receiver_puts_almost_nothing_back(store: StoreFixture) -> None:
    await create_due(store, 2000, WELL)
    worker = ManualWorker(store, sender := OriginSender())
    while len(sender.callbacks) < 2000:
        worker.at += 10
        await worker.claimer.tick(worker.at)
        await worker.deliveries.drain(60)
    assert put_backs(worker) == 0


async def test_a_burst_to_one_receiver_that_takes_its_time_puts_few_tasks_back(store: StoreFixture) -> None:
    await create_due(store, 2000, WELL)
    worker = ManualWorker(store, sender := OriginSender([WELL]))
    while len(sender.callbacks) < 2000:
        worker.at += 25
        await worker.claimer.tick(worker.at)
        if sender.hanging >= 140:
            sender._released.set()
            await worker.deliveries.drain(60)
            sender._released.clear()
    assert put_backs(worker) <= 2000 * 0.03
    await end(worker, sender)


async def test_the_tasks_of_a_receiver_that_recovers_come_within_ten_seconds(store: StoreFixture) -> None:
    await create_due(store, 3000, HANGS)
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await pass_time([worker], sender, NOW + 14_000, step=50)
    assert len(sender.callbacks) < 150
    sender.recover()
    await pass_time([worker], sender, worker.at + 10_200)
    assert len(sender.callbacks) == 3000
    assert max(Counter(call.id for call in sender.calls).values(), default=1) == 1


async def test_a_task_that_was_put_back_has_no_attempt_and_no_failure(store: StoreFixture) -> None:
    await create_due(store, 500, HANGS)
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await pass_time([worker], sender, NOW + 1000)
    contents = await assert_sound(store, worker.at)
    waiting = await store.lookup.query(list(contents.buckets[Bucket.DELAY, "order"]))
    assert len(waiting) == 500 - sender.hanging
    for record in waiting:
        assert isinstance(record, TaskRecord)
        assert (record.attempts, record.failure, record.due_at) == (0, None, NOW)
    await end(worker, sender)


async def test_no_task_of_a_receiver_that_is_well_is_passed_over_because_the_store_settles_slowly(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_due(store, 2000, WELL)
    worker = ManualWorker(store, OriginSender())
    settle, may_settle = worker.store.tasks.settle, asyncio.Event()

    async def settle_slowly(settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        await may_settle.wait()
        return await settle(settlements)

    monkeypatch.setattr(worker.store.tasks, "settle", settle_slowly)
    for _ in range(5):
        await worker.claimer.tick(worker.at)
        await asyncio.sleep(0.01)
        worker.at += 200
    assert put_backs(worker) <= 5 * MIN_PROBE
    may_settle.set()
    await worker.deliveries.drain(60)


async def test_tasks_that_waited_for_their_origin_were_held_by_it(store: StoreFixture) -> None:
    await create_due(store, 200, HANGS)
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await pass_time([worker], sender, NOW + 1000)
    began = len(sender.callbacks)
    sender.recover()
    await pass_time([worker], sender, NOW + 4000)
    counts = {
        held: worker.metrics.registry.get_sample_value("later_lateness_seconds_count", {"held": held})
        for held in ("no", "origin", "receiver")
    }
    assert counts == {"no": began, "origin": 200 - began, "receiver": 0}


async def test_nothing_is_known_of_origins_when_all_their_tasks_are_done(store: StoreFixture) -> None:
    await create_due(store, 1000, HANGS, *(f"http://host-{n}.example/" for n in range(400)))
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await pass_time([worker], sender, NOW + 2000)
    assert worker.metrics.registry.get_sample_value("later_origins_full") == 0
    sender.recover()
    await pass_time([worker], sender, NOW + 5000)
    assert len(sender.callbacks) == 1000
    assert len(worker.origin_share) == 0


async def test_a_crash_before_tasks_are_put_back_costs_them_a_lease(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_due(store, 300, HANGS)
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await tick(worker, sender)

    async def crash(*_: object) -> None:
        raise asyncio.CancelledError

    worker.at = NOW + 200
    with monkeypatch.context() as patched:
        patched.setattr(worker.store.tasks, "put_back", crash)
        with pytest.raises(asyncio.CancelledError):
            await worker.claimer.tick(worker.at)
    other = ManualWorker(store, well := OriginSender(), instance="other")
    other.at = NOW + 200 + LEASE_MS + MAX_LATE_MS
    await other.upkeep.unack_requeuer.tick(other.at)
    await pass_time([other], well, other.at + 2000)
    assert len(well.callbacks) == 300
    await end(worker, sender)


async def test_tasks_that_the_store_could_not_take_back_are_put_back_with_the_next_tick(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_due(store, 300, HANGS)
    worker = ManualWorker(store, sender := OriginSender([HANGS]))
    await tick(worker, sender)

    async def fail(*_: object) -> None:
        raise StoreDown("the store is gone")

    worker.at = NOW + 200
    with monkeypatch.context() as patched:
        patched.setattr(worker.store.tasks, "put_back", fail)
        await worker.claimer.tick(worker.at)
    await worker.claimer.tick(worker.at)
    contents = await assert_sound(store, worker.at)
    assert len(contents.buckets[Bucket.UNACK, "order"]) == sender.hanging
    await end(worker, sender)


class TestRetryAfter:
    async def test_a_receiver_that_asks_for_a_pause_does_not_delay_another_one(self, store: StoreFixture) -> None:
        await create_due(store, 1000, HANGS, WELL)
        worker = ManualWorker(store, sender := OriginSender(answers={HANGS: busy(3_600_000)}))
        await pass_time([worker], sender, NOW + 1000)
        await create_due(store, 100, WELL, delay=2)
        await pass_time([worker], sender, NOW + 2100)
        assert len(sender.calls_to(WELL)) == 600
        called = len(sender.calls_to(HANGS))
        assert called <= 144
        await pass_time([worker], sender, NOW + 3_540_000, step=60_000)
        assert len(sender.calls_to(HANGS)) == called

    async def test_the_same_receiver_is_called_for_another_topic(self, store: StoreFixture) -> None:
        await create_due(store, 1, WELL)
        worker = ManualWorker(store, sender := OriginSender(answers={WELL: busy(60_000)}))
        await pass_time([worker], sender, NOW + 20)
        await store.tasks.create([a_task(topic="mail", callback=WELL)])
        await pass_time([worker], sender, NOW + 40)
        assert len(sender.callbacks) == 2

    async def test_other_workers_learn_it_within_two_seconds(self, store: StoreFixture) -> None:
        await create_due(store, 1, WELL)
        sender = OriginSender(answers={WELL: busy(60_000)})
        workers = [ManualWorker(store, sender, instance=name) for name in ("one", "other")]
        await pass_time(workers, sender, NOW + 2000)
        await create_due(store, 50, WELL, delay=3)
        await pass_time(workers[1:], sender, NOW + 5000)
        assert len(sender.callbacks) == 1
        assert "order" in workers[1].held_origins

    async def test_of_too_many_holds_the_one_that_ends_first_is_dropped_even_if_it_is_new(
        self, store: StoreFixture
    ) -> None:
        worker = ManualWorker(store, OriginSender())
        origins = [Origin("http", f"host-{number}.example", 80) for number in range(MAX_HOLDS + 1)]
        for origin in origins[:-1]:
            worker.held_origins._add("order", origin, NOW + 60_000)
        await worker.held_origins.hold("order", origins[-1], NOW + 5000)
        held = {origin for origin in origins if worker.held_origins.holds("order", origin)}
        assert held == set(origins[:-1])

    async def test_its_tasks_come_slowly_at_first_and_then_all_of_them(self, store: StoreFixture) -> None:
        await create_due(store, 1, WELL)
        worker = ManualWorker(store, sender := OriginSender(answers={WELL: busy(5_000)}))
        await pass_time([worker], sender, NOW + 100)
        sender.answers = {}
        await create_due(store, 2000, WELL, delay=1)
        await pass_time([worker], sender, NOW + 5_000, step=50)
        assert len(sender.callbacks) == 1
        await pass_time([worker], sender, NOW + 6_300)
        assert 1 < len(sender.callbacks) < 500
        await pass_time([worker], sender, NOW + 15_000)
        assert len(sender.callbacks) == 2001

    async def test_a_hold_of_a_whole_topic_that_an_earlier_version_set_still_counts(self, store: StoreFixture) -> None:
        await create_due(store, 3, WELL)
        await hold_topic(store, "order", NOW + 2000)
        worker = ManualWorker(store, sender := OriginSender())
        await pass_time([worker], sender, NOW + 1980)
        assert sender.callbacks == []
        await pass_time([worker], sender, NOW + 2020)
        assert len(sender.callbacks) == 3


class TestLimits:
    async def test_permits_of_tasks_that_were_put_back_are_returned(self, store: StoreFixture) -> None:
        await create_due(store, 300, HANGS)
        await create_due(store, 300, WELL)
        worker = ManualWorker(store, sender := OriginSender([HANGS]))
        await worker.set_policy("order", concurrency=250)
        await pass_time([worker], sender, NOW + 3000)
        assert len(sender.calls_to(WELL)) == 300
        assert (await store.permits.in_use(["order"], worker.at)) == {"order": sender.hanging}
        await end(worker, sender)

    async def test_one_receiver_may_fill_the_concurrency_of_its_topic(self, store: StoreFixture) -> None:
        await create_due(store, 20, HANGS)
        worker = ManualWorker(store, sender := OriginSender([HANGS]))
        await worker.set_policy("order", concurrency=10)
        await pass_time([worker], sender, NOW + 1000)
        assert sender.hanging == 10
        await end(worker, sender)


class TestSlots:
    async def test_a_topic_whose_origins_hang_takes_no_slots_of_other_topics_that_are_due(
        self, store: StoreFixture
    ) -> None:
        worker = ManualWorker(store, sender := OriginSender([HANGS, WELL]), slots=24)
        await create_due(store, 2, HANGS)
        await tick(worker, sender)
        worker.at += 200
        await store.tasks.create([a_task(callback=url) for url in MANY_HANG])
        await store.tasks.create([a_task(topic=f"topic-{n}", callback=WELL) for n in range(20)])
        await worker.claimer.tick(worker.at)
        assert worker.fair_share.free >= 0
        sender.recover()
        await worker.deliveries.drain(60)

    async def test_no_more_calls_begin_than_there_are_slots_if_others_end_during_the_claim(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = ManualWorker(store, sender := OriginSender([HANGS, WELL]), slots=16)
        await create_due(store, 8, HANGS)
        await tick(worker, sender)
        worker.at += 200
        await create_due(store, 200, WELL)
        claim = worker.store.tasks.claim

        async def claim_while_calls_end(*arguments: Any) -> list[ClaimResult | LaterError]:
            results = await claim(*arguments)
            sender.hangs.discard(HANGS)
            sender._released.set()
            await worker.deliveries.drain(60)
            sender._released.clear()
            return results

        monkeypatch.setattr(worker.store.tasks, "claim", claim_while_calls_end)
        await worker.claimer.tick(worker.at)
        assert worker.fair_share.free >= 0
        sender.recover()
        await worker.deliveries.drain(60)
