"""The unack and error tickers' errand: back to delay what has waited long enough."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from later.core.errors import LaterError
from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import ReleaseResult
from later.worker.ticker import TickResult

log = structlog.get_logger("later.release")

TOPICS_A_TICK = 100
TRIM_LIMIT = 1000
TRIM_EVERY_MS = 1000


class Requeuer:
    """unack: the lease ran out. error: the pause is over. `on_moved` is told when there is something due in delay."""

    def __init__(self, bucket: Bucket, *, store: Store, metrics: Metrics, on_requeued: Callable[[], None]) -> None:
        self._bucket = bucket
        self._store = store
        self._released = metrics.tasks_requeued.labels(bucket.value)
        self._on_moved = on_requeued

    async def tick(self, now: int) -> TickResult:
        look = await self._store.tasks.due_topics(self._bucket, TOPICS_A_TICK)
        due = [wake for wake in look.topics if wake.at <= now]
        answers = await self._store.tasks.release(self._bucket, due, now)
        moved = sum(answer.moved for answer in answers if isinstance(answer, ReleaseResult))
        if moved:
            self._count(moved)
        times = [wake.at for wake in look.topics if wake.at > now]
        for answer in answers:
            if isinstance(answer, LaterError):
                raise answer
            if answer.wake_at is not None:
                times.append(answer.wake_at)
        if look.more_at is not None:
            times.append(look.more_at)
        return TickResult(moved, min(times, default=None))

    def _count(self, moved: int) -> None:
        self._released.inc(moved)
        if self._bucket is Bucket.UNACK:
            log.warning("leases expired", count=moved)
        self._on_moved()


class Trimmer:
    """Forgets ids and jobs that were remembered long enough: once a second, or each tick while there are many."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_at = 0

    async def tick(self, now: int) -> bool:
        """Is there more to forget?"""
        if self._next_at - TRIM_EVERY_MS <= now < self._next_at:
            return False  # (a clock that was set back must not hold this up)
        more = await self._store.tasks.trim(now, TRIM_LIMIT) >= TRIM_LIMIT
        await self._store.bulk_jobs.trim(now)
        self._next_at = now if more else now + TRIM_EVERY_MS
        return more
