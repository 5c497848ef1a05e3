"""The figures of the store that /metrics shows, gathered in the background: a scrape must cost the store nothing."""

from __future__ import annotations

from collections.abc import Iterable

from later.core.errors import LaterError
from later.metrics import MAX_TOPICS, OTHER, Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.store.stats import NO_TASKS, TopicCounts
from later.worker.ticker import TickResult


class StoreMetrics:
    """An errand that brings the gauges up to date."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._named: dict[str, None] = {}

    async def tick(self, now: int) -> TickResult:
        try:
            await self._gather((await self._store.now()).low)
        except LaterError:
            self._metrics.store_up.set(0)
            raise
        self._metrics.store_up.set(1)
        return TickResult(0, None)

    async def _gather(self, now: int) -> None:
        counts = await self._store.stats.counts(now)
        remembered, server = await self._store.stats.remembered_ids(), await self._store.stats.server_facts()
        labelled = self._labelled(counts)
        permits = await self._permits(labelled, now)
        self._show(labelled, now)
        self._metrics.topic_permits.clear()
        for topic, in_use in permits.items():
            self._metrics.topic_permits.labels(topic).set(in_use)
        self._metrics.remembered_ids.set(remembered)
        self._metrics.store_memory.set(server.memory)
        self._metrics.store_memory_max.set(server.max_memory)

    async def _permits(self, topics: Iterable[str], now: int) -> dict[str, int]:
        """Of those that have a limit on their concurrency."""
        policies = await self._store.policies.current()
        limited = [topic for topic in topics if topic != OTHER and policies.for_topic(topic).concurrency]
        return await self._store.permits.in_use(limited, now)

    def _labelled(self, counts: dict[str, TopicCounts]) -> dict[str, TopicCounts]:
        """The counts by label: who has a name keeps it while it has tasks, the rest are summed up."""
        self._named = dict.fromkeys(_first([*(t for t in self._named if t in counts), *counts], MAX_TOPICS))
        labelled: dict[str, TopicCounts] = {}
        for topic, count in counts.items():
            label = topic if topic in self._named else OTHER
            labelled[label] = labelled.get(label, NO_TASKS).plus(count)
        return labelled

    def _show(self, labelled: dict[str, TopicCounts], now: int) -> None:
        metrics = self._metrics
        for gauge in (metrics.tasks, metrics.tasks_due, metrics.oldest_due_age):
            gauge.clear()
        for label, count in labelled.items():
            for bucket, number in zip(Bucket, (count.delay, count.unack, count.error, count.dead), strict=True):
                metrics.tasks.labels(bucket.value, label).set(number)
            metrics.tasks_due.labels(label).set(count.due)
            oldest = now if count.oldest_due_at is None else count.oldest_due_at
            metrics.oldest_due_age.labels(label).set((now - oldest) / 1000)


def _first(topics: Iterable[str], limit: int) -> list[str]:
    return list(dict.fromkeys(topics))[:limit]
