"""Tick function that requeues tasks: from unack when their lease expired, from error when their pause is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from later.core.errors import LaterError, first_fault
from later.core.policy import Deliver
from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import TickResult

log = structlog.get_logger("later.requeue")

TOPICS_PER_TICK = 100


class Requeuer:
    """Tick function that moves the due tasks of one bucket back to delay, and then calls `on_requeued`."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        store: Store,
        metrics: Metrics,
        on_requeued: Callable[[], None],
        shard_selector: ShardSelector,
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._shard_selector = shard_selector
        self._requeued = metrics.tasks_requeued.labels(bucket.value)
        self._on_requeued = on_requeued

    async def tick(self, now: int) -> TickResult:
        shards = self._shard_selector.seen(now)
        entries, more_at = await self._store.tasks.due_topics(self._bucket, TOPICS_PER_TICK, shards)
        due = [entry for entry in entries if entry.at <= now]
        results = await self._store.tasks.release(self._bucket, due, now)
        moved = sum(result.moved for result in results if not isinstance(result, LaterError))
        if moved:
            self._requeued.inc(moved)
            if self._bucket is Bucket.UNACK:
                log.warning("leases expired", count=moved)
            if self._shard_selector.needs_note(now):
                self._shard_selector.note_created(now, {entry.shard for entry in due})
            self._on_requeued()
            await self._notify_consumers([entry.topic for entry in due], now)
        next_times = [entry.at for entry in entries if entry.at > now]
        if (error := first_fault(results)) is not None:
            raise error
        next_times += [
            result.wake_at for result in results if not isinstance(result, LaterError) and result.wake_at is not None
        ]
        if more_at is not None:
            next_times.append(more_at)
        return TickResult(moved, min(next_times, default=None))

    async def _notify_consumers(self, topics: Sequence[str], now: int) -> None:
        """Tell claims that wait of tasks that are due again."""
        policies = self._store.policies.latest
        if policies.has_pulled and (
            pulled := {topic for topic in topics if policies.for_topic(topic).deliver is Deliver.PULL}
        ):
            await self._store.due_notices.send(pulled, now)
