"""Hands: each carries one claimed task from its claim to its settle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import structlog

from later.core.clock import Interval
from later.core.errors import LaterError
from later.core.policy import Policy
from later.core.retry import Outcome, OutcomeKind, SettleTarget, Verdict, judge, judge_unreadable, judge_unsent
from later.core.task import Task
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.open import Store
from later.store.types import Claim, Settlement
from later.worker.fair_share import FairShare
from later.worker.throttle import Throttle

log = structlog.get_logger("later.hands")

SETTLE_RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5)
"""Between tries of a settle that could not reach the store; the last one again and again."""
SETTLE_GRACE_S = 5.0
"""How long a stop waits for settles beyond its patience for deliveries: what was made must not be made again."""


class TaskSender(Protocol):
    """What a hand needs of a sender."""

    async def send(self, task: Task, attempt: int, now: int, policy: Policy) -> Outcome: ...


class DeliveryPool:
    """Deliveries under way. A hand is taken from the claim until the settle was answered, or the lease has ended."""

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
    ) -> None:
        self._store = store
        self._settle_one = GroupCommit(store.tasks.settle, queue_timeout_s=store.client.timeout_s)
        self._sender = sender
        self._lanes = fair_share
        self._gate = throttle
        self._remember_ms = remember_ms
        self._metrics = metrics
        self._count_outcome = {kind: metrics.deliveries.labels(kind.value).inc for kind in OutcomeKind}
        self._chance = random
        self._busy: set[asyncio.Task[None]] = set()
        self._attempting: set[asyncio.Task[Any] | None] = set()
        self._cut: list[Claim] = []
        self.on_slot_free: Callable[[bool], None] = lambda may_go_on: None

    def start(self, claim: Claim) -> None:
        """Begin a delivery."""
        self._lanes.acquire(claim.topic)
        hand = asyncio.create_task(self.deliver(claim))
        self._busy.add(hand)
        hand.add_done_callback(lambda done: self._free(done, claim))

    async def deliver(self, claim: Claim) -> None:
        """Carry one claim to its settle."""
        hand = asyncio.current_task()
        self._attempting.add(hand)
        try:
            verdict = await self._attempt(claim)
        except asyncio.CancelledError:
            self._cut.append(claim)
            raise
        finally:
            self._attempting.discard(hand)
        if verdict is None:
            await self._give_back([claim])
        else:
            await self._settle(claim, verdict)

    async def drain(self, timeout_s: float) -> None:
        """Let deliveries under way end, cut off those that take longer, and give their leases back."""
        await self._wait(timeout_s)
        _cancel(self._busy & self._attempting)
        await self._wait(SETTLE_GRACE_S)
        _cancel(self._busy)
        await asyncio.gather(*self._busy, return_exceptions=True)
        if self._cut:
            log.info("deliveries cancelled at shutdown", count=len(self._cut))
            await self._give_back(self._cut)

    async def _wait(self, patience_s: float) -> None:
        if self._busy:
            await asyncio.wait(self._busy, timeout=patience_s)

    async def _attempt(self, claim: Claim) -> Verdict | None:
        """The verdict on this attempt; None where it was not made and is another's to make."""
        now = self._store.clock.now()
        if not isinstance(claim.task, Task):
            return judge_unreadable(claim.attempt, claim.task, now.high)
        unsent = judge_unsent(claim.task, claim.attempt, claim.failure, now.high)
        if unsent is not None:
            return unsent
        policy = self._store.policies.latest.for_topic(claim.topic)
        if claim.lease_end - now.high <= policy.timeout_ms:
            return None
        if claim.attempt == 1:
            self._metrics.lateness.observe(max(now.low - claim.due_at, 0) / 1000)
        outcome = await self._send(claim.task, claim, now.low, policy)
        verdict = judge(
            claim.task,
            claim.attempt,
            claim.failure,
            outcome,
            (await self._now()).high,
            policy.backoff,
            self._chance(),
        )
        if outcome.retry_after_ms is not None and verdict.target is SettleTarget.ERROR:
            await self._gate.hold(claim.topic, verdict.at)
        return verdict

    async def _now(self) -> Interval:
        """The store's time, asked for where this machine slept meanwhile; the best guess where it does not answer."""
        if not self._store.clock.is_steady():
            with suppress(LaterError):
                await self._store.measure_time()
        return self._store.clock.now()

    async def _send(self, task: Task, claim: Claim, now: int, policy: Policy) -> Outcome:
        started = self._store.clock.monotonic()
        outcome = await self._sender.send(task, claim.attempt, now, policy)
        self._metrics.delivery_duration.observe(self._store.clock.monotonic() - started)
        self._count_outcome[outcome.kind]()
        if outcome.kind is not OutcomeKind.DONE:
            code = str(outcome.status) if outcome.reason == "status" else outcome.reason
            self._metrics.count_delivery_failure(claim.topic, code)
        log.debug(
            "delivered",
            id=claim.id,
            topic=claim.topic,
            attempt=claim.attempt,
            outcome=outcome.kind.value,
            status=outcome.status,
            reason=outcome.reason,
        )
        return outcome

    async def _settle(self, claim: Claim, verdict: Verdict) -> None:
        """Settle, again and again until the store answers or the lease ends."""
        settlement = Settlement(claim, verdict, self._remember_until(claim, verdict))
        tries = 0
        while (answer := await self._try_settle(settlement)) is None and self._store.clock.now().low < claim.lease_end:
            await asyncio.sleep(SETTLE_RETRY_DELAYS_S[min(tries, len(SETTLE_RETRY_DELAYS_S) - 1)])
            tries += 1
        if answer:
            self._count(claim, verdict)
        elif answer is None or not tries:  # after a try whose answer was lost, "no" may mean that it was made
            self._metrics.settles_lost.inc()
            log.warning("settle rejected: lease lost", id=claim.id, topic=claim.topic, attempt=claim.attempt)

    async def _try_settle(self, settlement: Settlement) -> bool | None:
        """The store's answer; None where there was none."""
        try:
            return await self._settle_one(settlement)
        except LaterError as error:
            log.debug("settle failed", id=settlement.claim.id, reason=str(error))
            return None

    def _remember_until(self, claim: Claim, verdict: Verdict) -> int | None:
        own_id = isinstance(claim.task, Task) and claim.task.own_id
        return verdict.at + self._remember_ms if own_id and self._remember_ms else None

    def _count(self, claim: Claim, verdict: Verdict) -> None:
        if verdict.target is SettleTarget.ERROR:
            self._metrics.retries.inc()
        elif verdict.target is SettleTarget.DEAD and verdict.failure is not None:
            failure = verdict.failure
            self._metrics.count_dead(claim.topic, failure.reason)
            log.warning(
                "task dead",
                id=claim.id,
                topic=claim.topic,
                attempt=claim.attempt,
                reason=failure.reason,
                message=failure.message,
            )

    async def _give_back(self, claims: list[Claim]) -> None:
        """Where the store cannot be reached, the leases run out instead."""
        try:
            await self._store.tasks.give_back(claims)
        except LaterError as error:
            log.warning("leases not given back", count=len(claims), reason=str(error))

    def _free(self, hand: asyncio.Task[None], claim: Claim) -> None:
        self._busy.discard(hand)
        self._lanes.release(claim.topic)
        may_go_on = self._gate.on_delivery_end(claim.topic)
        if not hand.cancelled() and (error := hand.exception()) is not None:
            log.error("delivery crashed", id=claim.id, topic=claim.topic, exc_info=error)
        self.on_slot_free(may_go_on)


def _cancel(hands: Iterable[asyncio.Task[None]]) -> None:
    for hand in hands:
        hand.cancel()
