"""The deliveries in flight: each sends the task of one claim, and settles it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from later.core.errors import LaterError, format_traceback
from later.core.held import Held
from later.core.origin import Origin
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
from later.worker.held_origins import HeldOrigins
from later.worker.origin_share import OriginShare
from later.worker.settler import Settler
from later.worker.throttle import Throttle

log = structlog.get_logger("later.deliveries")

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


class _Delivery(msgspec.Struct, eq=False):
    """The delivery of a claim: it holds a slot until its settle was answered, or its lease has ended.

    `held` is what held the task until it was claimed. `origin` is that of its callback, if it has one, and `began_at`
    (ms) when it took its slot.
    """

    claim: Claim
    held: Held
    origin: Origin | None
    began_at: int
    attempt: asyncio.Task[None] | None = None
    has_outcome: bool = False
    """True if a stop must not give the task back."""

    def cancel(self) -> None:
        """Cancel the attempt, and what follows from its outcome."""
        if self.attempt is not None:
            self.attempt.cancel()


class DeliveryPool:
    """Deliveries in flight."""

    def __init__(
        self,
        *,
        store: Store,
        sender: TaskSender,
        fair_share: FairShare,
        origin_share: OriginShare,
        held_origins: HeldOrigins,
        throttle: Throttle,
        remember_ms: int,
        metrics: Metrics,
        random: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when a slot becomes free that a due task waited for."""
        self._store = store
        self._settler = Settler[_Delivery](
            store=store, metrics=metrics, on_end=self._end, report_fault=self._report_lost
        )
        self._put_back_one = GroupCommit(self._put_back, queue_timeout_s=math.inf)
        """Without descriptors, all calls fail at once: each would want a connection to the store of its own."""
        self._sender = sender
        self._fair_share = fair_share
        self._origin_share = origin_share
        self._held_origins = held_origins
        self._throttle = throttle
        self._remember_ms = remember_ms
        self._metrics = metrics
        self._random = random
        self.wake = wake
        self._running: set[_Delivery] = set()
        self._all_ended = asyncio.Event()
        self._cancelled: list[Claim] = []
        self._logs_deliveries = log.is_enabled_for(logging.DEBUG)
        self._fault_logged_at: dict[str, int] = {}
        """The times (ms) at which the faults of the last `FAULT_LOG_MS` were logged, by their tracebacks or reasons."""

    def start(self, claim: Claim, now: int, held: Held = Held.NO, origin: Origin | None = None) -> None:
        """Start the delivery of a claim at `now` (ms). `held` is what held the task until it was claimed.

        It has a slot of its own, which is also one of the callback's `origin`, if it has one.
        """
        self._fair_share.acquire(claim.topic)
        if origin is not None:
            self._origin_share.acquire(claim.topic, origin, now)
        delivery = _Delivery(claim, held, origin, now)
        self._running.add(delivery)
        delivery.attempt = asyncio.get_running_loop().create_task(self._deliver(delivery))

    async def _deliver(self, delivery: _Delivery) -> None:
        """Make one attempt, and have its verdict settled.

        Once it has an outcome, a stop does not give its task back.
        """
        claim = delivery.claim
        policy = self._store.policies.latest.for_topic(claim.topic)
        verdict: Verdict | None = None
        try:
            result = await self._attempt(claim, policy, delivery.held)
            delivery.has_outcome = True
            if isinstance(result, Outcome):
                verdict = await self._judge(claim, policy, result)
            elif isinstance(result, PutBack):
                await self._put_back_one(result)
            else:
                verdict = result
        except asyncio.CancelledError:
            if not delivery.has_outcome:
                self._cancelled.append(claim)
            raise
        except Exception as error:  # a fault of later's own
            if delivery.has_outcome:
                self._report_lost(claim, error)
            else:
                delivery.has_outcome = True
                self._report_fault(claim, error, f"in {FAULT_PAUSE_MS // 1000} s")
                await self._put_back_one(PutBack(claim, self._store.clock.now().high + FAULT_PAUSE_MS))
        finally:
            if verdict is None:
                self._end([delivery])
            else:
                own_id = isinstance(claim.task, Task) and claim.task.own_id
                remember_until = verdict.at + self._remember_ms if own_id and self._remember_ms else None
                self._settler.settle(delivery, Settlement(claim, verdict, remember_until))

    def _end(self, deliveries: Sequence[_Delivery]) -> None:
        """Free the slots of these deliveries."""
        unblocked, now = False, self._store.clock.now().low
        for delivery in deliveries:
            topic = delivery.claim.topic
            self._running.discard(delivery)
            self._fair_share.release(topic)
            if delivery.origin is not None:
                self._origin_share.release(topic, delivery.origin, delivery.began_at, now)
            unblocked |= self._throttle.on_delivery_end(topic)
        if not self._running:
            self._all_ended.set()
        if unblocked or self._fair_share.tasks_wait:
            self.wake()

    async def drain(self, timeout_s: float) -> None:
        """Let deliveries in flight finish, cancel those that take longer, and give back their tasks."""
        await asyncio.sleep(0)  # a delivery that was cancelled before its first step could not give its task back
        await self._wait(timeout_s)
        for delivery in self._running:
            if not delivery.has_outcome:
                delivery.cancel()
        await self._wait(SETTLE_GRACE_S)
        left = list(self._running)
        for delivery in left:
            delivery.cancel()
        await asyncio.gather(*(delivery.attempt for delivery in left if delivery.attempt), return_exceptions=True)
        await self._settler.cancel()
        if self._running:  # otherwise the store's time may never have been known
            self._end(list(self._running))
        if self._cancelled:
            log.info("deliveries cancelled at shutdown", count=len(self._cancelled))
            await self._put_back([PutBack(claim, claim.due_at) for claim in self._cancelled])

    async def _wait(self, timeout_s: float) -> None:
        """Wait until all deliveries have ended, but no longer than this."""
        if self._running:
            self._all_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_ended.wait()

    async def _attempt(self, claim: Claim, policy: Policy, held: Held) -> Outcome | Verdict | PutBack:
        """Return the outcome of the call; if none is to be made, the verdict.

        The task is put back if its lease is too short, or if this machine could not make the call.
        """
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
        try:
            outcome = await self._sender.send(claim.task, claim.attempt, failures, now.low, policy)
        except LocalFault as error:  # any receiver would have met it: it must not cost the task a retry
            self._report_local_fault(claim, error)
            return PutBack(claim, clock.now().high + LOCAL_FAULT_PAUSE_MS)
        self._metrics.delivery_duration.observe(clock.monotonic() - started)
        return outcome

    async def _judge(self, claim: Claim, policy: Policy, outcome: Outcome) -> Verdict:
        """Count the outcome, and return the verdict on it. Holds the origin if it asked for that."""
        assert isinstance(claim.task, Task)  # otherwise there was no call
        clock = self._store.clock
        self._metrics.deliveries.inc(claim.topic, outcome.kind)
        if outcome.kind is not OutcomeKind.DONE:
            self._metrics.count_delivery_failure(claim.topic, outcome.reason, outcome.status)
        if self._logs_deliveries:
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
            await self._held_origins.hold(claim.topic, Origin.of(claim.task.callback), verdict.at)
        return verdict

    def _report_lost(self, claim: Claim, error: Exception) -> None:
        """Report a fault that leaves a task until its lease ends."""
        self._report_fault(claim, error, "when its lease ends")

    def _report_fault(self, claim: Claim, error: Exception, again: str) -> None:
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

    async def _put_back(self, tasks: Sequence[PutBack]) -> Sequence[None]:
        """Return tasks that were not delivered; if the store cannot be reached, their leases expire instead."""
        try:
            await self._store.tasks.put_back(tasks)
        except LaterError as error:
            log.warning("tasks not given back", count=len(tasks), reason=str(error))
        return [None] * len(tasks)
