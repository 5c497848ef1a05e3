"""The deliveries in flight: each sends the task of one claim, and settles it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import structlog

from later.core.errors import LaterError, format_traceback
from later.core.held import Held
from later.core.policy import Policy
from later.core.retry import (
    Outcome,
    OutcomeKind,
    SettleTarget,
    Verdict,
    judge,
    judge_unreadable,
    judge_unsent,
)
from later.core.task import Task
from later.delivery.http_client import LocalFault
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.open import Store
from later.store.types import Claim, PutBack, Settlement
from later.worker.fair_share import FairShare
from later.worker.throttle import Throttle

log = structlog.get_logger("later.deliveries")

SETTLE_RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5)
"""Delays between tries of a settle that could not reach the store; the last one repeats."""
SETTLE_GRACE_S = 5.0
"""How long a stop waits for settles beyond its timeout for deliveries: what was delivered must not be repeated."""
FAULT_PAUSE_MS = 60_000
"""How long a task waits after a fault of later's own: the fault is likely to come again, and spends no retry."""
LOCAL_FAULT_PAUSE_MS = 1000
"""How long a task waits if this machine could not call its receiver: connections are closed all the time."""
FAULT_LOG_MS = 60_000
"""How often the same fault is logged as an error: one that every delivery meets would fill the disk with tracebacks."""


class TaskSender(Protocol):
    """A sender, as far as deliveries use it."""

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome: ...


class DeliveryPool:
    """Deliveries in flight. Each holds a slot from its claim until its settle was answered, or its lease has ended."""

    def __init__(
        self,
        *,
        store: Store,
        sender: TaskSender,
        fair_share: FairShare,
        throttle: Throttle,
        remember_ms: int,
        metrics: Metrics,
        random: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when a slot becomes free that a due task waited for."""
        self._store = store
        self._settle_one = GroupCommit(store.tasks.settle, queue_timeout_s=store.client.timeout_s)
        self._sender = sender
        self._fair_share = fair_share
        self._throttle = throttle
        self._remember_ms = remember_ms
        self._metrics = metrics
        self._random = random
        self.wake = wake
        self._running: set[asyncio.Task[None]] = set()
        self._attempting: set[asyncio.Task[Any] | None] = set()
        """Deliveries that have no outcome yet."""
        self._cancelled: list[Claim] = []
        self._fault_logged_at: dict[str, int] = {}
        """The times (ms) at which the faults of the last `FAULT_LOG_MS` were logged, by their tracebacks or reasons."""

    def start(self, claim: Claim, held: Held = Held.NO) -> None:
        """Start the delivery of a claim, in a slot of its own. `held` is what held the task until it was claimed."""
        self._fair_share.acquire(claim.topic)
        delivery = asyncio.create_task(self.deliver(claim, held))
        self._running.add(delivery)

        def free_slot(delivery: asyncio.Task[None]) -> None:
            self._running.discard(delivery)
            self._fair_share.release(claim.topic)
            unblocked = self._throttle.on_delivery_end(claim.topic)
            if not delivery.cancelled() and (error := delivery.exception()) is not None:
                self._report_fault(claim, error, "when its lease ends")
            if unblocked or self._fair_share.tasks_wait:
                self.wake()

        delivery.add_done_callback(free_slot)

    async def deliver(self, claim: Claim, held: Held = Held.NO) -> None:
        """Make one attempt, and settle it. Once it has an outcome, a stop does not give its task back."""
        delivery = asyncio.current_task()
        policy = self._store.policies.latest.for_topic(claim.topic)
        self._attempting.add(delivery)
        try:
            result = await self._attempt(claim, policy, held)
        except asyncio.CancelledError:
            self._cancelled.append(claim)
            raise
        except LocalFault as error:  # any receiver would have met it: it must not cost the task a retry
            self._report_local_fault(claim, error)
            result = PutBack(claim, self._store.clock.now().high + LOCAL_FAULT_PAUSE_MS)
        except Exception as error:
            self._report_fault(claim, error, f"in {FAULT_PAUSE_MS // 1000} s")
            result = PutBack(claim, self._store.clock.now().high + FAULT_PAUSE_MS)
        finally:
            self._attempting.discard(delivery)
        match result:
            case PutBack():
                await self._put_back([result])
            case Verdict():
                await self._settle(claim, result)
            case Outcome():
                await self._settle(claim, await self._judge(claim, policy, result))

    async def drain(self, timeout_s: float) -> None:
        """Let deliveries in flight finish, cancel those that take longer, and give back their tasks."""
        await self._wait(timeout_s)
        for delivery in self._running & self._attempting:
            delivery.cancel()
        await self._wait(SETTLE_GRACE_S)
        for delivery in self._running:
            delivery.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._cancelled:
            log.info("deliveries cancelled at shutdown", count=len(self._cancelled))
            await self._put_back([PutBack(claim, claim.due_at) for claim in self._cancelled])

    async def _wait(self, timeout_s: float) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def _attempt(self, claim: Claim, policy: Policy, held: Held) -> Outcome | Verdict | PutBack:
        """Return the outcome of the call; if none is to be made, the verdict. If the lease is too short, put back."""
        clock = self._store.clock
        now = clock.now()
        if not isinstance(claim.task, Task):
            return judge_unreadable(claim.attempt, claim.task, now.high)
        unsent = judge_unsent(claim.task, claim.attempt, claim.failure, now.high)
        if unsent is not None:
            return unsent
        if claim.lease_end - now.high <= policy.timeout_ms:
            return PutBack(claim, claim.due_at)
        if claim.attempt == 1:
            self._metrics.observe_lateness[held](max(now.low - claim.due_at, 0) / 1000)
        started = clock.monotonic()
        failures = 0 if claim.failure is None else claim.failure.failures
        outcome = await self._sender.send(claim.task, claim.attempt, failures, now.low, policy)
        self._metrics.delivery_duration.observe(clock.monotonic() - started)
        return outcome

    async def _judge(self, claim: Claim, policy: Policy, outcome: Outcome) -> Verdict:
        """Count the outcome, and return the verdict on it. Holds the topic if its receiver asked for that."""
        assert isinstance(claim.task, Task)  # otherwise there was no call
        clock = self._store.clock
        self._metrics.deliveries.inc(claim.topic, outcome.kind.value)
        if outcome.kind is not OutcomeKind.DONE:
            self._metrics.count_delivery_failure(claim.topic, outcome.reason, outcome.status)
        log.debug(
            "delivered",
            id=claim.id,
            topic=claim.topic,
            attempt=claim.attempt,
            outcome=outcome.kind.value,
            status=outcome.status,
            reason=outcome.reason,
        )
        if not clock.is_steady():  # this machine slept meanwhile: ask for the store's time, or take the best guess
            with suppress(LaterError):
                await self._store.time.measure()
        ended_at, random = clock.now().high, self._random()
        verdict = judge(claim.task, claim.attempt, claim.failure, outcome, ended_at, policy, random)
        if outcome.retry_after_ms is not None and verdict.target is SettleTarget.ERROR:
            await self._throttle.hold(claim.topic, verdict.at)
        return verdict

    async def _settle(self, claim: Claim, verdict: Verdict) -> None:
        """Settle the claim; try again until the store answers or the lease ends."""
        own_id = isinstance(claim.task, Task) and claim.task.own_id
        remember_until = verdict.at + self._remember_ms if own_id and self._remember_ms else None
        settlement = Settlement(claim, verdict, remember_until)
        settled: bool | None = None
        tries = 0
        while settled is None:
            try:
                settled = await self._settle_one(settlement)
            except LaterError as error:
                log.debug("settle failed", id=claim.id, reason=str(error))
                if self._store.clock.now().low >= claim.lease_end:
                    break
                await asyncio.sleep(SETTLE_RETRY_DELAYS_S[min(tries, len(SETTLE_RETRY_DELAYS_S) - 1)])
                tries += 1
        if not settled:
            if settled is None or not tries:  # after a try without an answer, False may mean that it settled
                self._metrics.settles_lost.inc()
                log.warning("settle rejected: lease lost", id=claim.id, topic=claim.topic, attempt=claim.attempt)
        elif verdict.target is SettleTarget.ERROR:
            self._metrics.retries.inc()
        elif verdict.target is SettleTarget.DEAD and verdict.failure is not None:
            failure = verdict.failure
            self._metrics.topic_dead.inc(claim.topic, failure.reason)
            log.warning(
                "task dead",
                id=claim.id,
                topic=claim.topic,
                attempt=claim.attempt,
                reason=failure.reason,
                message=failure.message,
            )

    def _report_fault(self, claim: Claim, error: BaseException, again: str) -> None:
        """Count and log a fault of later's own. `again` says when the task is tried again.

        Of the same fault, only one in a minute is logged as an error.
        """
        self._metrics.delivery_faults.inc()
        about = {"id": claim.id, "topic": claim.topic, "attempt": claim.attempt, "again": again}
        exception = format_traceback(error)
        if self._is_first_of_its_minute(exception):
            log.error("delivery crashed", **about, exception=exception)
        else:
            log.debug("delivery crashed again", **about)

    def _report_local_fault(self, claim: Claim, error: LocalFault) -> None:
        """Count and log a call that this machine could not make. Of the same reason, one in a minute is a warning."""
        self._metrics.delivery_local_faults.inc()
        about = {"id": claim.id, "topic": claim.topic, "reason": str(error)}
        if self._is_first_of_its_minute(str(error)):
            log.warning("delivery not possible", **about)
        else:
            log.debug("delivery still not possible", **about)

    def _is_first_of_its_minute(self, fault: str) -> bool:
        now = self._store.clock.now().low
        recent = {fault: at for fault, at in self._fault_logged_at.items() if now < at + FAULT_LOG_MS}
        self._fault_logged_at = {fault: now} | recent
        return fault not in recent

    async def _put_back(self, tasks: list[PutBack]) -> None:
        """Return tasks that were not delivered; if the store cannot be reached, their leases expire instead."""
        try:
            await self._store.tasks.put_back(tasks)
        except LaterError as error:
            log.warning("tasks not given back", count=len(tasks), reason=str(error))
