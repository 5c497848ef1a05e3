"""The errands that end tasks: those whose ttl ended while they waited, and the dead that were kept long enough."""

from __future__ import annotations

from collections import Counter

import structlog

from later.core.errors import LaterError
from later.core.retry import expiry_failure
from later.metrics import Metrics
from later.store.open import Store
from later.store.scripts import MAX_TASKS
from later.store.types import DueTopic, ExpiredTask
from later.worker.ticker import TickResult

log = structlog.get_logger("later.ends")

EXPIRY_EVERY_MS = 500
SWEEP_EVERY_MS = 1000
SWEEP_TOPICS = 500
SWEEP_PAGES = 10
SWEEP_TASKS = 1000
"""How many topics are looked at at once, how often, and how many tasks are swept, in one tick."""


class ExpiryTicker:
    """delay, error → dead, "expired": whatever it is that a task waits for, not beyond its ttl."""

    def __init__(self, *, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def tick(self, now: int) -> TickResult:
        found = await self._store.expiry.expired_tasks(now)
        if not found:
            return TickResult(0, None)
        deaths = [(task, expiry_failure(task.failure, now)) for task in found]
        answers = await self._store.expiry.expire(deaths, now)
        died = [task for task, answer in zip(found, answers, strict=True) if answer is True]
        self._count(died)
        for answer in answers:
            if isinstance(answer, LaterError):
                raise answer
        full = max(Counter(task.shard for task in found).values()) >= MAX_TASKS
        return TickResult(len(died), now if full else None)

    def _count(self, died: list[ExpiredTask]) -> None:
        for task in died:
            self._metrics.count_dead(task.topic, "expired")
            log.warning("task dead", id=task.id, topic=task.topic, reason="expired")


class DeadSweeper:
    """dead → gone, `dead_keep` after the death. Their ids are remembered for `remember_ms` where callers chose them."""

    def __init__(self, *, store: Store, remember_ms: int, metrics: Metrics) -> None:
        self._store = store
        self._remember_ms = remember_ms
        self._metrics = metrics

    async def tick(self, now: int) -> TickResult:
        policies = await self._store.policies.current()
        swept = pages = 0
        while swept < SWEEP_TASKS and pages < SWEEP_PAGES:
            wakes = await self._store.expiry.topics_with_dead(now - policies.shortest_dead_keep_ms, SWEEP_TOPICS)
            for wake in wakes:
                latest = now - policies.for_topic(wake.topic).dead_keep_ms
                if wake.at <= latest:
                    swept += await self._sweep(wake, latest, now, SWEEP_TASKS - swept)
            pages += 1
            if self._store.expiry.is_at_the_start():
                break
        self._metrics.dead_removed.inc(swept)
        return TickResult(swept, now if swept >= SWEEP_TASKS else None)

    async def _sweep(self, wake: DueTopic, latest: int, now: int, limit: int) -> int:
        """How many were swept of one topic; about `limit` at most."""
        remember_until = now + self._remember_ms if self._remember_ms else None
        swept = 0
        while swept < limit and (dead := await self._store.expiry.dead_tasks(wake, latest)):
            answers = await self._store.expiry.sweep(dead, latest, remember_until)
            gone = sum(answer is True for answer in answers)
            if not gone:
                break  # somebody else sweeps here, or the store fails: there is another tick
            swept += gone
        return swept
