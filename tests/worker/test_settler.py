"""Settles: those that come together share a round trip, and each is tried again until its lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from later.core.errors import LaterError, StoreDown
from later.core.retry import Verdict, judge
from later.core.task import Task
from later.store.group_commit import MAX_ROUND_TRIPS
from later.store.keys import Bucket
from later.store.types import Settlement
from later.worker.dispatcher import STARTS_PER_TURN
from tests.builders import a_task
from tests.store_fixture import StoreFixture
from tests.worker.workers import LEASE_MS, FakeSender, ManualWorker, busy

Answers = list[bool | LaterError]
Settle = Callable[[Sequence[Settlement]], Awaitable[Answers]]


@pytest.fixture
def shards() -> int:
    """Return 1: nothing here depends on the shards."""
    return 1


class Settles:
    """The worker's settles: each call gets the next of the `replies`, then the store's own; `sizes` are of each call.

    A reply gets the settlements, and the real settle.
    """

    def __init__(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch, *replies: Callable[..., Awaitable[Answers]]
    ) -> None:
        self.sizes: list[int] = []
        self._replies = list(replies)
        self._settle: Settle = worker.store.tasks.settle
        monkeypatch.setattr(worker.store.tasks, "settle", self.settle)
        monkeypatch.setattr("later.worker.settler.RETRY_DELAYS_S", (0,))

    async def settle(self, settlements: Sequence[Settlement]) -> Answers:
        self.sizes.append(len(settlements))
        if self._replies:
            return await self._replies.pop(0)(settlements, self._settle)
        return await self._settle(settlements)


async def be_down(settlements: Sequence[Settlement], settle: Settle) -> Answers:
    raise StoreDown("the store is gone")


async def settle_unheard(settlements: Sequence[Settlement], settle: Settle) -> Answers:
    """Settle, but lose the answer."""
    await settle(settlements)
    raise StoreDown("the store did not answer")


async def a_worker_with(store: StoreFixture, *tasks: Task) -> ManualWorker:
    await store.tasks.create(tasks)
    return ManualWorker(store, FakeSender())


def metric(worker: ManualWorker, name: str) -> float | None:
    return worker.metrics.registry.get_sample_value(name)


async def test_deliveries_that_end_together_are_settled_in_one_round_trip(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await a_worker_with(store, *(a_task() for _ in range(STARTS_PER_TURN)))
    settles = Settles(worker, monkeypatch)
    await worker.work()
    assert settles.sizes == [STARTS_PER_TURN]


async def test_a_delivery_that_was_settled_while_another_was_judged_is_not_settled_again(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ManualWorker(store, FakeSender(busy(60_000)))
    hold, is_held, may_hold, is_settled = worker.held_origins.hold, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold_slowly(*arguments: Any) -> None:
        is_held.set()
        await may_hold.wait()
        await hold(*arguments)

    async def report_settle(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        is_settled.set()
        return await settle(settlements)

    monkeypatch.setattr(worker.held_origins, "hold", hold_slowly)
    settles = Settles(worker, monkeypatch, report_settle)
    for callback, event in (("http://busy.example/", is_held), ("http://well.example/", is_settled)):
        await store.tasks.create([a_task(callback=callback)])
        await worker.tick()
        await event.wait()
    may_hold.set()
    await worker.deliveries.drain(60)
    assert (settles.sizes, worker.fair_share.total_in_use) == ([1, 1], 0)
    assert metric(worker, "later_settles_lost_total") == 0


async def test_a_settle_without_an_answer_is_tried_again(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_task()
    worker = await a_worker_with(store, task)
    settles = Settles(worker, monkeypatch, be_down, be_down)
    await worker.work()
    assert (settles.sizes, await worker.is_gone(task), worker.fair_share.total_in_use) == ([1, 1, 1], True, 0)


async def test_of_many_settles_those_that_failed_are_tried_again(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [a_task() for _ in range(3)]
    worker = await a_worker_with(store, *tasks)

    async def fail_first(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        return [StoreDown("the store refuses it"), *await settle(settlements[1:])]

    settles = Settles(worker, monkeypatch, fail_first)
    await worker.work()
    assert settles.sizes == [3, 1]
    assert [await worker.is_gone(task) for task in tasks] == [True] * 3
    assert metric(worker, "later_settles_lost_total") == 0


async def test_a_settle_that_was_carried_out_without_an_answer_counts_as_no_loss(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task()
    worker = await a_worker_with(store, task)
    Settles(worker, monkeypatch, settle_unheard)
    await worker.work()
    assert (await worker.is_gone(task), metric(worker, "later_settles_lost_total")) == (True, 0)


async def test_a_settle_is_given_up_when_its_lease_ends(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_task()
    worker = await a_worker_with(store, task)

    async def let_lease_end(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        worker.at += LEASE_MS
        raise StoreDown("the store is gone")

    settles = Settles(worker, monkeypatch, be_down, let_lease_end)
    await worker.work()
    assert settles.sizes == [1, 1]
    assert ((await worker.find(task)).state, worker.fair_share.total_in_use) == (Bucket.UNACK, 0)
    assert metric(worker, "later_settles_lost_total") == 1


async def test_a_fault_of_ours_in_a_settle_leaves_the_tasks_until_their_leases_end(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [a_task() for _ in range(2)]
    worker = await a_worker_with(store, *tasks)

    async def crash(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        raise KeyError("a bug")

    Settles(worker, monkeypatch, crash)
    await worker.work()
    assert [(await worker.find(task)).state for task in tasks] == [Bucket.UNACK] * 2
    assert (worker.fair_share.total_in_use, metric(worker, "later_delivery_faults_total")) == (0, 2)


async def test_a_fault_of_ours_in_a_verdict_leaves_that_task_alone_until_its_lease_ends(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [a_task(content=content) for content in ("well", "odd")]
    worker = await a_worker_with(store, *tasks)

    def crash(task: Task, *rest: Any, **options: Any) -> Verdict:
        if task.content == "odd":
            raise KeyError("a bug")
        return judge(task, *rest, **options)

    monkeypatch.setattr("later.worker.deliveries.judge", crash)
    await worker.work()
    assert [await worker.is_gone(task) for task in tasks] == [True, False]
    assert (worker.fair_share.total_in_use, metric(worker, "later_delivery_faults_total")) == (0, 1)


async def test_faults_of_ours_in_a_verdict_and_in_a_hold_free_each_slot_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.tasks.create([a_task(content=content) for content in ("well", "odd")])
    worker = ManualWorker(store, FakeSender(busy(60_000), busy(60_000)))

    def crash(task: Task, *rest: Any, **options: Any) -> Verdict:
        if task.content == "odd":
            raise KeyError("a bug")
        return judge(task, *rest, **options)

    async def crash_too(*arguments: Any) -> None:
        raise KeyError("another bug")

    monkeypatch.setattr("later.worker.deliveries.judge", crash)
    monkeypatch.setattr(worker.held_origins, "hold", crash_too)
    await worker.work()
    assert (worker.fair_share.total_in_use, len(worker.origin_share)) == (0, 0)


async def test_few_round_trips_are_under_way_at_a_time_and_the_next_takes_all_that_wait(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await a_worker_with(store)
    may_answer = asyncio.Event()

    async def wait(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        await may_answer.wait()
        return await settle(settlements)

    settles = Settles(worker, monkeypatch, *[wait] * MAX_ROUND_TRIPS)
    for _ in range(5):
        await store.tasks.create([a_task()])
        await worker.tick()
        await asyncio.sleep(0.01)
    assert settles.sizes == [1] * MAX_ROUND_TRIPS
    may_answer.set()
    await worker.deliveries.drain(60)
    assert settles.sizes == [*[1] * MAX_ROUND_TRIPS, 5 - MAX_ROUND_TRIPS]


async def test_a_stop_right_after_a_claim_gives_its_tasks_back(store: StoreFixture) -> None:
    task = a_task()
    await store.tasks.create([task])
    worker = ManualWorker(store, sender := FakeSender())
    sender.may_answer.clear()
    await worker.tick()
    await worker.deliveries.drain(0)
    found = await worker.find(task)
    assert (found.state, found.attempts, worker.fair_share.total_in_use) == (Bucket.DELAY, 0, 0)


async def test_a_stop_gives_up_settles_that_the_store_does_not_answer(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task()
    worker = await a_worker_with(store, task)

    async def hang(settlements: Sequence[Settlement], settle: Settle) -> Answers:
        await asyncio.Event().wait()
        return []

    Settles(worker, monkeypatch, hang)
    monkeypatch.setattr("later.worker.deliveries.SETTLE_GRACE_S", 0.01)
    await worker.tick()
    await worker.deliveries.drain(0.01)
    assert ((await worker.find(task)).state, worker.fair_share.total_in_use) == (Bucket.UNACK, 0)


async def test_a_slot_is_free_only_when_its_settle_is_as_durable_as_it_is_to_be(store: StoreFixture) -> None:
    is_confirmed, may_confirm = asyncio.Event(), asyncio.Event()

    async def confirm() -> None:
        is_confirmed.set()
        await may_confirm.wait()

    await store.tasks.create([a_task()])
    worker = ManualWorker(store, FakeSender(), confirm_settles=confirm)
    await worker.tick()
    await is_confirmed.wait()
    in_use = [worker.fair_share.total_in_use]
    may_confirm.set()
    await worker.deliveries.drain(60)
    assert [*in_use, worker.fair_share.total_in_use] == [1, 0]
