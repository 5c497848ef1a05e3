"""The deliveries in flight: each sends the task of one claim, and settles it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from later.core.errors import LaterError, UnreadableBody
from later.core.held import Held
from later.core.origin import Origin
from later.core.policy import PULL, Policy
from later.core.policy_scopes import Policies
from later.core.retry import (
    Outcome,
    OutcomeKind,
    SettleTarget,
    Verdict,
    judge,
    judge_uncallable,
    judge_unreadable,
    judge_unsent,
)
from later.core.task import Task
from later.delivery.http_client import LocalFault
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.open import Store
from later.store.types import Claim, PutBack, Settlement
from later.worker.delivery_sampler import DeliverySampler
from later.worker.delivery_traces import DeliveryTraces
from later.worker.fair_share import FairShare
from later.worker.fault_reports import FaultReports
from later.worker.held_origins import HeldOrigins
from later.worker.origin_share import OriginShare
from later.worker.put_back import PutBackQueue
from later.worker.settler import Settler
from later.worker.throttle import Throttle

if TYPE_CHECKING:
    from later.tracing.spans import DeliverySpan, SpanRecorder

log = structlog.get_logger("later.deliveries")

SETTLE_GRACE_S = 5.0
"""How long a stop waits for settles beyond its timeout for deliveries: what was delivered must not be repeated."""
FAULT_PAUSE_MS = 60_000
"""How long a task waits after a fault of later's own: the fault is likely to come again, and spends no retry."""
LOCAL_FAULT_PAUSE_MS = 1000
"""How long a task waits if this machine could not call its receiver: connections are closed all the time."""


class TaskSender(Protocol):
    """A sender, as far as deliveries use it."""

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome: ...


class _Delivery(msgspec.Struct, eq=False):
    """The delivery of a claim: it holds a slot until its settle was answered, or its lease has ended.

    `held` is what held the task until it was claimed. `origin` is that of the callback to call, if there is one.
    `claimed_ns` is the Unix time of the claim, if deliveries are traced.
    """

    claim: Claim
    held: Held
    origin: Origin | None
    claimed_ns: int
    span: DeliverySpan | None = None
    attempt: asyncio.Task[None] | None = None
    result: Outcome | Verdict | PutBack | None = None
    """The result of the attempt. Once it is known, a stop does not give the task back."""

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
        put_backs: PutBackQueue,
        metrics: Metrics,
        random: Callable[[], float],
        wake: Callable[[], None],
        span_recorder: SpanRecorder | None = None,
        confirm_settles: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`wake` is called when a slot becomes free that a due task waited for. `span_recorder` traces deliveries.

        A slot becomes free only after `confirm_settles`, if there is one.
        """
        self._store = store
        self._settler = Settler[_Delivery](
            store=store,
            metrics=metrics,
            judge=self._judge,
            on_answer=None if span_recorder is None else _note_settle,
            on_end=self._end,
            report_fault=self._report_lost,
            confirm=confirm_settles,
        )
        self._put_back_one = GroupCommit(self._put_back, queue_timeout_s=math.inf)
        """Without descriptors, all calls fail at once: each would want a connection to the store of its own."""
        self._sender = sender
        self._fair_share = fair_share
        self._origin_share = origin_share
        self._held_origins = held_origins
        self._throttle = throttle
        self._put_backs = put_backs
        self._metrics = metrics
        self._random = random
        self.wake = wake
        self._running: set[_Delivery] = set()
        self._all_ended = asyncio.Event()
        self._cancelled: list[Claim] = []
        self.sampler = DeliverySampler()
        self._logs_deliveries = log.is_enabled_for(logging.DEBUG)
        self._faults = FaultReports(metrics, store.clock)
        self._traces = None if span_recorder is None else DeliveryTraces(span_recorder, metrics)

    def start_all(self, deliveries: Sequence[tuple[Claim, Held, Origin | None]], now: int) -> None:
        """Start the deliveries of claims at `now` (ms), each with what held its task, and its origin.

        Each has a slot of its own, which is also one of the callback's origin, if it has one.
        """
        counts: dict[tuple[str, Origin | None], int] = {}
        for claim, _, origin in deliveries:
            key = (claim.topic, origin)
            counts[key] = counts.get(key, 0) + 1
        for (topic, origin), count in counts.items():
            self._fair_share.acquire(topic, count)
            if origin is not None:
                self._origin_share.acquire(topic, origin, now, count)
        loop = asyncio.get_running_loop()
        claimed_ns = 0 if self._traces is None else self._traces.now_ns()
        for claim, held, origin in deliveries:
            delivery = _Delivery(claim, held, origin, claimed_ns)
            self._running.add(delivery)
            delivery.attempt = loop.create_task(self._deliver(delivery))

    def start(self, claim: Claim, now: int, held: Held = Held.NO, origin: Origin | None = None) -> None:
        """Start one delivery."""
        self.start_all([(claim, held, origin)], now)

    async def _deliver(self, delivery: _Delivery) -> None:
        """Make one attempt, and have its outcome judged and settled."""
        claim = delivery.claim
        try:
            delivery.result = await self._attempt(delivery)
        except asyncio.CancelledError:
            self._cancelled.append(claim)
            self._end([delivery])
            raise
        except Exception as error:  # a fault of later's own
            self._faults.report_fault(claim, error, f"in {FAULT_PAUSE_MS // 1000} s")
            delivery.result = PutBack(claim, self._store.clock.now().high + FAULT_PAUSE_MS, Held.FAULT)
        if not isinstance(delivery.result, PutBack):
            self._settler.settle(delivery)
            return
        try:
            await self._put_back_one(delivery.result)
        finally:
            self._end([delivery])

    def _end(self, deliveries: Sequence[_Delivery]) -> None:
        """Free the slots of these deliveries."""
        ended: dict[tuple[str, Origin | None], int] = {}
        for delivery in deliveries:
            self._running.discard(delivery)
            if delivery.span is not None:
                delivery.span.end(is_put_back=isinstance(delivery.result, PutBack | None))
            key = (delivery.claim.topic, delivery.origin)
            ended[key] = ended.get(key, 0) + 1
        unblocked, now = False, self._store.clock.now().low
        for (topic, origin), count in ended.items():
            self._fair_share.release(topic, count)
            if origin is not None:
                self._origin_share.release(topic, origin, now, count)
            unblocked |= self._throttle.on_delivery_end(topic)
        if not self._running:
            self._all_ended.set()
        if unblocked or self._fair_share.tasks_wait:
            self.wake()

    async def drain(self, timeout_s: float) -> None:
        """Let deliveries in flight finish, cancel those that take longer, and give back their tasks."""
        await asyncio.sleep(0)  # a delivery that was cancelled before its first step could not give its task back
        await self.wait_until_idle(timeout_s)
        for delivery in self._running:
            if delivery.result is None:
                delivery.cancel()
        await self.wait_until_idle(SETTLE_GRACE_S)
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
        if self._put_backs:
            log.warning("tasks not given back", count=len(self._put_backs))

    @property
    def is_idle(self) -> bool:
        """True if no delivery is in flight, and all that have ended are settled."""
        return not self._running

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until all deliveries have ended, but no longer than this."""
        if self._running:
            self._all_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_ended.wait()

    async def _attempt(self, delivery: _Delivery) -> Outcome | Verdict | PutBack:
        """Return the outcome of the call; if none is to be made, the verdict.

        The task is put back if its lease is too short, if consumers are to claim it, or if this machine could not make
        the call.
        """
        claim, clock = delivery.claim, self._store.clock
        now = clock.now()
        policy = self._store.policies.latest.for_topic(claim.topic)
        if not isinstance(claim.task, Task):
            return judge_unreadable(claim.attempt, claim.task, now.high)
        task = claim.task
        if policy.deliver is PULL or not task.callback:
            called = _with_callback_of(policy, task, delivery.origin)
            if called is None:
                return await self._leave_uncalled(claim, task)
            task = called
        unsent = judge_unsent(task, claim.attempt, claim.failure, now.high, keep=self._store.keep_failures)
        if unsent is not None:
            return unsent
        if claim.lease_end - now.high <= policy.timeout_ms:
            return PutBack(claim, claim.due_at)
        return await self._call(delivery, task, now.low, policy)

    async def _call(self, delivery: _Delivery, task: Task, now: int, policy: Policy) -> Outcome | PutBack:
        """Return the outcome of a call of `task` that begins at `now` (ms)."""
        claim, clock = delivery.claim, self._store.clock
        if claim.attempt == 1:
            self._metrics.observe_lateness[delivery.held](max(now - claim.due_at, 0) / 1000)
        if self._traces is not None:
            span = self._traces.begin(claim, task, delivery.held, delivery.origin, now, delivery.claimed_ns)
            if span is not None:
                delivery.span, task = span, span.task_to_call(task)
        started = clock.monotonic()
        failures = 0 if claim.failure is None else claim.failure.failures
        try:
            outcome = await self._sender.send(task, claim.attempt, failures, now, policy)
        except LocalFault as error:  # any receiver would have met it: it must not cost the task a retry
            self._faults.report_local_fault(claim, error)
            return PutBack(claim, clock.now().high + LOCAL_FAULT_PAUSE_MS, Held.FAULT)
        took_s = clock.monotonic() - started
        self._metrics.delivery_duration.observe(took_s)
        took_ms = round(took_s * 1000)
        if outcome.kind is not OutcomeKind.DONE:
            outcome = msgspec.structs.replace(outcome, took_ms=took_ms)
        if self._traces is not None and delivery.span is not None:
            self._traces.note_outcome(delivery.span, outcome, took_s)
        self.sampler.offer(claim, delivery.origin, outcome, now, took_ms)
        if delivery.origin is not None:
            self._origin_share.end_call(claim.topic, delivery.origin, took_ms, now + took_ms)
        return outcome

    async def _leave_uncalled(self, claim: Claim, task: Task) -> Verdict | PutBack:
        """Leave a pulled topic's task to consumers, and hold the topic; one without a callback is dead elsewhere.

        The policies are read anew, because this process may not know of a change yet. If they name a callback by now,
        the task is claimed again, so that it counts for that origin.
        """
        try:
            policies = await self._store.policies.read()
            policy = policies.for_topic(claim.topic)
            if policy.deliver is PULL:
                await self._store.permits.hold_paused([(claim.topic, claim.shard)])
            elif not task.callback and not policy.callback:
                now = self._store.clock.now().high
                return judge_uncallable(claim.attempt, claim.failure, now, self._store.keep_failures)
        except LaterError as error:
            log.debug("policies not read", id=claim.id, topic=claim.topic, reason=str(error))
        return PutBack(claim, claim.due_at)

    async def _judge(self, deliveries: Sequence[_Delivery]) -> list[tuple[_Delivery, Settlement]]:
        """Return the settlements of deliveries that have a result, all judged at the same time.

        Their outcomes are counted, and origins held that asked for it.
        """
        clock = self._store.clock
        if not clock.is_steady():  # this machine slept meanwhile: ask for the store's time, or take the best guess
            with suppress(LaterError):
                await self._store.time.measure()
        now = clock.now().high
        settlements: list[tuple[_Delivery, Settlement]] = []
        counts: dict[tuple[str, OutcomeKind], int] = {}
        holds: list[Awaitable[None]] = []
        faulty: list[_Delivery] = []
        policies = self._store.policies.latest
        for delivery in deliveries:
            claim, task, result = delivery.claim, delivery.claim.task, delivery.result
            if isinstance(result, Outcome) and isinstance(task, Task):
                counts[claim.topic, result.kind] = counts.get((claim.topic, result.kind), 0) + 1
                try:
                    verdict = self._judge_outcome(claim, task, result, now)
                except Exception as error:  # a fault of later's own
                    self._report_lost(delivery, error)
                    faulty.append(delivery)
                    continue
                if result.retry_after_ms is not None and verdict.target is SettleTarget.ERROR:
                    origin = delivery.origin or Origin.of(task.callback)
                    holds.append(self._held_origins.hold(claim.topic, origin, verdict.at))
            else:
                assert isinstance(result, Verdict)  # what is put back is not settled
                verdict = result
            if policies.leave_tasks:
                verdict = self._store.dead_letter_topics.plan(claim, verdict, policies)
            settlements.append((delivery, Settlement(claim, verdict, _remember_until(task, policies, verdict.at))))
        for (topic, kind), count in counts.items():
            self._metrics.count_deliveries(topic, kind, count)
        if holds:
            await asyncio.gather(*holds)
        if faulty:
            self._end(faulty)  # not before: if a hold fails, the settler ends all of them
        return settlements

    def _judge_outcome(self, claim: Claim, task: Task, outcome: Outcome, now: int) -> Verdict:
        """Return the verdict on an outcome at `now` (ms)."""
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
        policy = self._store.policies.latest.for_topic(claim.topic)
        keep = self._store.keep_failures
        return judge(task, claim.attempt, claim.failure, outcome, now, policy, self._random(), keep=keep)

    def _report_lost(self, delivery: _Delivery, error: Exception) -> None:
        """Report a fault that leaves a task until its lease ends."""
        self._faults.report_fault(delivery.claim, error, "when its lease ends")

    async def _put_back(self, tasks: Sequence[PutBack]) -> Sequence[None]:
        """Put tasks back that were not delivered; an answer for each of them."""
        await self._put_backs.put_back(tasks, self._store.clock.now().low)
        return [None] * len(tasks)


def _remember_until(task: Task | UnreadableBody, policies: Policies, ended_at: int) -> int | None:
    """Return until when (ms) the id of a task that ends is remembered; None: not at all."""
    if not isinstance(task, Task) or not task.own_id:
        return None
    return policies.for_topic(task.topic).remember_until(ended_at, task.remember_ms)


def _with_callback_of(policy: Policy, task: Task, origin: Origin | None) -> Task | None:
    """Return a task without a callback with that of its topic's policy; None if no such call may be made.

    The delivery holds a slot of `origin`: if the policy names another one by now, the task is claimed again.
    """
    callback = policy.called_by_default
    if not callback or Origin.of(callback) != origin:
        return None
    return msgspec.structs.replace(task, callback=callback)


def _note_settle(delivery: _Delivery, settlement: Settlement, is_settled: bool) -> None:
    """Note in the span of a delivery, if it has one, how the store answered its settle."""
    if delivery.span is not None:
        delivery.span.note_settle(settlement.verdict.target, is_settled=is_settled)
