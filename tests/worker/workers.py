"""A worker for tests: a test sets the time and chooses the outcomes of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import AsyncMock

from later.core.clock import Clock, StoreTime
from later.core.errors import LaterError
from later.core.policy import DEFAULT_POLICY, Policy
from later.core.policy_scopes import PolicyScope, namespace_scope, topic_scope
from later.core.retry import Outcome, OutcomeKind
from later.core.task import Task
from later.metrics import Metrics
from later.store.types import TaskRecord
from later.tracing.spans import SpanRecorder
from later.worker.deliveries import TaskSender
from later.worker.worker import Worker
from tests.builders import NOW
from tests.store_fixture import StoreFixture

TIMEOUT_MS = 15_000
LEASE_MS = 30_000
TICK_MS = 100
MAX_LATE_MS = 2
"""Everything may happen this late, because the time of the store is known as an interval."""

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


class FakeSender:
    """A sender that returns the given outcomes in turn, then DONE; it waits while `may_answer` is not set."""

    def __init__(self, *answers: Outcome) -> None:
        self.calls: list[Call] = []
        self._answers = list(answers)
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        self.calls.append(Call(task.id, attempt, now))
        answer = self._answers.pop(0) if self._answers else DONE
        self.called.set()
        await self.may_answer.wait()
        return answer


class ManualWorker(Worker):
    """A worker whose tickers do not run: a test calls their tick functions, at the store's time `at`."""

    def __init__(
        self,
        store: StoreFixture,
        sender: TaskSender,
        *,
        slots: int = 256,
        policy: Policy | None = None,
        instance: str = "this",
        span_recorder: SpanRecorder | None = None,
        confirm_settles: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.clock = clock = Clock(lambda: self.at / 1000, lambda: self.at / 1000)
        self.at = NOW
        self.policies = store.new_policy_book(policy or DEFAULT_POLICY)
        self.store = replace(
            store,
            clock=clock,
            time=StoreTime(clock, AsyncMock()),
            policies=self.policies,
            permits=store.new_permits(instance),
        )
        self.metrics = Metrics()
        super().__init__(
            store=self.store,
            sender=sender,
            metrics=self.metrics,
            slots=slots,
            tick_ms=TICK_MS,
            lease_ms=LEASE_MS,
            random=lambda: 0.0,
            check_callback=self.check_callback,
            instance=instance,
            span_recorder=span_recorder,
            confirm_settles=confirm_settles,
        )

    def check_callback(self, callback: str) -> None:
        """Refuse nothing, as the address guard does when it is off."""

    @property
    def at(self) -> int:
        return self._at

    @at.setter
    def at(self, at: int) -> None:
        self._at = at
        self.clock.observe(at * 1000, at / 1000, at / 1000)

    async def tick(self) -> int:
        """Run one tick of each ticker; return how many tasks were claimed. Their deliveries go on."""
        await self.upkeep.expirer.tick(self.at)
        await self.upkeep.sweeper.tick(self.at)
        for requeuer in (self.upkeep.unack_requeuer, self.upkeep.error_requeuer):
            await requeuer.tick(self.at)
        return (await self.claimer.tick(self.at)).moved

    async def work(self) -> int:
        """Run a tick, and the deliveries that it starts to their end; return how many tasks were claimed."""
        claimed = await self.tick()
        await self.deliveries.drain(60)
        return claimed

    async def work_until(self, at: int, step: int) -> None:
        """Work every `step` ms until `at`."""
        while self.at < at:
            self.at = min(self.at + step, at)
            await self.work()

    async def set_policy(self, topic: str, **fields: object) -> None:
        """Set these fields of the topic's policy."""
        await self._change_policy(topic_scope(topic), fields)

    async def set_namespace_policy(self, namespace: str, **fields: object) -> None:
        """Set these fields of the namespace's policy."""
        await self._change_policy(namespace_scope(namespace), fields)

    async def _change_policy(self, scope: PolicyScope, fields: dict[str, object]) -> None:
        await self.policies.change(scope, lambda before: before.merge(fields))  # type: ignore[arg-type]  # as written

    async def find(self, task: Task) -> TaskRecord:
        answer = (await self.store.lookup.query([task.id]))[0]
        assert isinstance(answer, TaskRecord), answer
        return answer

    async def is_gone(self, task: Task) -> bool:
        return isinstance((await self.store.lookup.query([task.id]))[0], LaterError)
