"""Tick functions that move tasks back to delay, and one that forgets what was remembered long enough."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from later.core.errors import LaterError
from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.worker.ticker import TickResult

log = structlog.get_logger("later.requeue")

TOPICS_PER_TICK = 100
TRIM_LIMIT = 1000
TRIM_EVERY_MS = 1000


class Requeuer:
    """Tick function that moves tasks back to delay: from unack when a lease expired, from error when a pause is over.

    `on_requeued` is called when tasks were moved.
    """

    def __init__(self, bucket: Bucket, *, store: Store, metrics: Metrics, on_requeued: Callable[[], None]) -> None:
        self._bucket = bucket
        self._store = store
        self._requeued = metrics.tasks_requeued.labels(bucket.value)
        self._on_requeued = on_requeued

    async def tick(self, now: int) -> TickResult:
        topics, more_at = await self._store.tasks.due_topics(self._bucket, TOPICS_PER_TICK)
        results = await self._store.tasks.release(self._bucket, [topic for topic in topics if topic.at <= now], now)
        moved = sum(result.moved for result in results if not isinstance(result, LaterError))
        if moved:
            self._requeued.inc(moved)
            if self._bucket is Bucket.UNACK:
                log.warning("leases expired", count=moved)
            self._on_requeued()
        times = [topic.at for topic in topics if topic.at > now]
        for result in results:
            if isinstance(result, LaterError):
                raise result
            if result.wake_at is not None:
                times.append(result.wake_at)
        if more_at is not None:
            times.append(more_at)
        return TickResult(moved, min(times, default=None))


class Trimmer:
    """Forgets ids and bulk jobs that were remembered long enough: once a second, or each tick while many are left."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_at = 0

    async def tick(self, now: int) -> bool:
        """Return True if there is more to forget."""
        if self._next_at - TRIM_EVERY_MS <= now < self._next_at:
            return False  # the lower bound matters when the clock was set back
        more = await self._store.tasks.trim(now, TRIM_LIMIT) >= TRIM_LIMIT
        await self._store.bulk_jobs.trim(now)
        self._next_at = now if more else now + TRIM_EVERY_MS
        return more
