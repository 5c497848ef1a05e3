"""A worker whose time is ours and whose receivers answer as told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from later.core.clock import Clock
from later.core.errors import LaterError
from later.core.policy import DEFAULT, Policy
from later.core.retry import Outcome, OutcomeKind
from later.core.task import Task
from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.types import TaskRecord, WorkerSnapshot
from later.worker.claimer import Claimer
from later.worker.deliveries import DeliveryPool
from later.worker.expiry import DeadSweeper, ExpiryTicker
from later.worker.fair_share import FairShare
from later.worker.requeue import Requeuer
from later.worker.resume import Resumer
from later.worker.throttle import Throttle
from tests.builders import NOW
from tests.store_fixture import StoreFixture

TIMEOUT_MS = 15_000
LEASE_MS = 30_000
REMEMBER_MS = 7 * 86_400_000

DONE = Outcome(kind=OutcomeKind.DONE, status=200)
FAILED = Outcome(kind=OutcomeKind.FAILED, reason="status", status=500, message="answered 500")
GONE = Outcome(kind=OutcomeKind.GONE, reason="status", status=410, message="answered 410")


def busy(retry_after_ms: int | None = None) -> Outcome:
    return Outcome(
        kind=OutcomeKind.BUSY, reason="status", status=503, message="answered 503", retry_after_ms=retry_after_ms
    )


class Call(NamedTuple):
    """A delivery as a receiver saw it."""

    id: str
    attempt: int
    at: int


class Receivers:
    """The world outside: answers in turn what it was told, then done; or holds its answers back."""

    def __init__(self, *answers: Outcome) -> None:
        self.calls: list[Call] = []
        self._answers = list(answers)
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def send(self, task: Task, attempt: int, now: int, policy: Policy) -> Outcome:
        self.calls.append(Call(task.id, attempt, now))
        answer = self._answers.pop(0) if self._answers else DONE
        self.called.set()
        await self.may_answer.wait()
        return answer


class Worker:
    """The errands of a crew, run by hand: `at` is the store's time as this worker knows it."""

    def __init__(
        self,
        store: StoreFixture,
        receivers: Receivers,
        *,
        hands: int = 256,
        policy: Policy | None = None,
        instance: str = "this",
    ) -> None:
        self.clock = clock = Clock(lambda: self.at / 1000, lambda: self.at / 1000)
        self.at = NOW
        self.policies = store.policies_anew(policy or DEFAULT)
        permits = store.permits_of(instance)
        self.store = store = replace(store, clock=clock, policies=self.policies, permits=permits)
        self.metrics = Metrics()
        self.lanes = FairShare(hands)
        self._seen: list[WorkerSnapshot] = []
        self.gate = Throttle(store=store, fair_share=self.lanes, lease_ms=LEASE_MS, metrics=self.metrics)
        self.holds = Resumer(store)
        self.hands = DeliveryPool(
            store=store,
            throttle=self.gate,
            sender=receivers,
            fair_share=self.lanes,
            remember_ms=REMEMBER_MS,
            metrics=self.metrics,
            random=lambda: 0.0,
        )
        self.delay = Claimer(
            store=store,
            throttle=self.gate,
            fair_share=self.lanes,
            lease_ms=LEASE_MS,
            deliver=self.hands.start,
            on_snapshot=self._seen.append,
            metrics=self.metrics,
        )
        self.expiry = ExpiryTicker(store=store, metrics=self.metrics)
        self.sweep = DeadSweeper(store=store, remember_ms=REMEMBER_MS, metrics=self.metrics)
        self._releases = [
            Requeuer(bucket, store=store, metrics=self.metrics, on_requeued=lambda: None)
            for bucket in (Bucket.UNACK, Bucket.ERROR)
        ]

    @property
    def seen(self) -> WorkerSnapshot:
        """What the delay ticker saw last."""
        return self._seen[-1]

    @property
    def at(self) -> int:
        return self._at

    @at.setter
    def at(self, at: int) -> None:
        self._at = at
        self.clock.observe(at * 1000, at / 1000, at / 1000)

    async def tick(self) -> int:
        """One tick of each ticker; how many tasks were claimed. Their deliveries go on."""
        await self.expiry.tick(self.at)
        await self.sweep.tick(self.at)
        for release in self._releases:
            await release.tick(self.at)
        return (await self.delay.tick(self.at)).moved

    async def work(self) -> int:
        """A tick, and the deliveries that it began, to their end; how many tasks were claimed."""
        claimed = await self.tick()
        await self.hands.drain(60)
        return claimed

    async def work_until(self, at: int, step: int) -> None:
        """Work every `step` ms until `at`."""
        while self.at < at:
            self.at = min(self.at + step, at)
            await self.work()

    async def find(self, task: Task) -> TaskRecord:
        answer = (await self.store.lookup.query([task.id]))[0]
        assert isinstance(answer, TaskRecord), answer
        return answer

    async def is_gone(self, task: Task) -> bool:
        return isinstance((await self.store.lookup.query([task.id]))[0], LaterError)
