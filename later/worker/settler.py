"""The settles of deliveries: those whose verdicts come at the same time share a round trip.

No delivery waits for its own settle: a future, another step of its asyncio task and a callback would cost each of them
as much as all the rest of a settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Generic, TypeVar

import structlog

from later.core.errors import LaterError
from later.core.retry import SettleTarget
from later.metrics import Metrics
from later.store.group_commit import MAX_ITEMS, MAX_ROUND_TRIPS
from later.store.open import Store
from later.store.types import Settlement

log = structlog.get_logger("later.deliveries")

RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5)
"""Delays between tries of a settle that could not reach the store; the last one repeats."""

Delivery = TypeVar("Delivery")


class Settler(Generic[Delivery]):
    """Settles deliveries, and tries again until the store answers or their leases end.

    `judge` returns the settlements of deliveries whose calls ended at the same time. `on_answer` is called with each
    delivery whose settle was answered, its settlement, and whether it was settled. `on_end` is called with deliveries
    whose settle was answered, or whose lease has ended; if there is a `confirm`, only after that. `report_fault` is
    called with faults of later's own: then a task waits until its lease ends.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        judge: Callable[[Sequence[Delivery]], Awaitable[list[tuple[Delivery, Settlement]]]],
        on_end: Callable[[Sequence[Delivery]], None],
        on_answer: Callable[[Delivery, Settlement, bool], None] | None = None,
        report_fault: Callable[[Delivery, Exception], None],
        confirm: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._confirm = confirm
        self._store = store
        self._metrics = metrics
        self._judge = judge
        self._on_end = on_end
        self._on_answer = on_answer
        self._report_fault = report_fault
        self._unjudged: list[Delivery] = []
        self._waiting: list[tuple[Delivery, Settlement]] = []
        self._round_trips = asyncio.Semaphore(MAX_ROUND_TRIPS)
        self._tasks: set[asyncio.Task[None]] = set()

    def settle(self, delivery: Delivery) -> None:
        """Judge and settle a delivery, together with others whose calls end in this turn of the event loop."""
        if not self._unjudged:
            self._start(self._judge_and_settle())
        self._unjudged.append(delivery)

    async def cancel(self) -> None:
        """End all settles, also those that are to be tried again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _judge_and_settle(self) -> None:
        deliveries, self._unjudged = self._unjudged, []
        try:
            judged = await self._judge(deliveries)
            self._waiting += judged  # not in one step: it would restore what was waiting before, and is settled now
        except Exception as error:
            self._give_up(deliveries, error)
        async with self._round_trips:
            while self._waiting:  # otherwise those that came before have been sent with these
                group, self._waiting = self._waiting[:MAX_ITEMS], self._waiting[MAX_ITEMS:]
                await self._settle_group(group, tries=0)

    async def _settle_again(self, group: list[tuple[Delivery, Settlement]], tries: int) -> None:
        await asyncio.sleep(RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1])
        async with self._round_trips:
            await self._settle_group(group, tries)

    async def _settle_group(self, group: list[tuple[Delivery, Settlement]], tries: int) -> None:
        """Settle a group in one round trip, after `tries` tries without an answer."""
        answers: Sequence[bool | LaterError]
        try:
            leave_tasks = self._store.policies.latest.leave_tasks
            settle = self._store.dead_letter_topics.settle if leave_tasks else self._store.tasks.settle
            answers = await settle([settlement for _, settlement in group])
        except LaterError as error:
            answers = [error] * len(group)
        except Exception as error:
            self._give_up([delivery for delivery, _ in group], error)
            return
        ended: list[Delivery] = []
        again: list[tuple[Delivery, Settlement]] = []
        for (delivery, settlement), answer in zip(group, answers, strict=True):
            if not isinstance(answer, LaterError):
                if self._on_answer is not None:
                    self._on_answer(delivery, settlement, answer)
                if not answer or settlement.verdict.target is not SettleTarget.DONE:
                    self._report(settlement, answer, is_certain=not tries)
            else:
                log.debug("settle failed", id=settlement.claim.id, reason=str(answer))
                if self._store.clock.now().low < settlement.claim.lease_end:
                    again.append((delivery, settlement))
                    continue
                self._report(settlement, False, is_certain=True)
            ended.append(delivery)
        if again:
            self._start(self._settle_again(again, tries + 1))
        if self._confirm is None:
            self._on_end(ended)
        else:
            self._start(self._end_confirmed(ended, self._confirm))

    async def _end_confirmed(self, deliveries: Sequence[Delivery], confirm: Callable[[], Awaitable[object]]) -> None:
        """End deliveries when their settles are as durable as they are to be, or that was waited for in vain."""
        try:
            await confirm()
        except Exception as error:
            self._give_up(deliveries, error)
        else:
            self._on_end(deliveries)

    def _give_up(self, deliveries: Sequence[Delivery], fault: Exception) -> None:
        """Leave the tasks of these deliveries until their leases end."""
        for delivery in deliveries:
            self._report_fault(delivery, fault)
        self._on_end(deliveries)

    def _report(self, settlement: Settlement, settled: bool, is_certain: bool) -> None:
        """Count and log what became of a task. It is not certain that a settle was lost whose first answer was."""
        claim, verdict, _ = settlement
        if not settled:
            if is_certain:
                self._metrics.settles_lost.inc()
                log.warning("settle rejected: lease lost", id=claim.id, topic=claim.topic, attempt=claim.attempt)
        elif verdict.target is SettleTarget.ERROR:
            self._metrics.retries.inc()
        elif verdict.target is SettleTarget.DEAD and verdict.failure is not None:
            failure, moved = verdict.failure, verdict.moved
            self._metrics.count_death(claim.topic, failure.reason, claim.id)
            log.warning(
                "task dead",
                id=claim.id,
                topic=claim.topic,
                attempt=claim.attempt,
                reason=failure.reason,
                message=failure.message,
                **({} if moved is None else {"moved_to": moved.topic}),
            )
