"""Gauges of the store, updated in the background: a scrape of /metrics must cost the store nothing."""

from __future__ import annotations

from itertools import islice

from later.core.errors import LaterError
from later.metrics import MAX_TOPICS, OTHER, Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.store.stats import NO_TASKS, TopicCounts
from later.worker.ticker import TickResult


class StoreMetrics:
    """Tick function that updates the gauges of the whole store."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._labelled: dict[str, None] = {}
        """Topics with a label of their own, in the order in which they got it."""

    async def tick(self, now: int) -> TickResult:
        try:
            await self._update((await self._store.time.now()).low)
        except LaterError:
            self._metrics.store_up.set(0)
            raise
        self._metrics.store_up.set(1)
        return TickResult(0, None)

    async def _update(self, now: int) -> None:
        """Read all values first: a store that fails halfway must not leave half of them."""
        stats = self._store.stats
        counts = self._sum_by_label(await stats.counts(now))
        remembered, server = await stats.remembered_ids(), await stats.server_facts()
        policies = await self._store.policies.current()
        limited = [topic for topic in counts if topic != OTHER and policies.for_topic(topic).concurrency]
        permits = await self._store.permits.in_use(limited, now)
        metrics = self._metrics
        for gauge in (metrics.tasks, metrics.tasks_due, metrics.oldest_due_age, metrics.topic_permits):
            gauge.clear()
        for label, count in counts.items():
            for bucket, number in zip(Bucket, (count.delay, count.unack, count.error, count.dead), strict=True):
                metrics.tasks.labels(bucket.value, label).set(number)
            metrics.tasks_due.labels(label).set(count.due)
            oldest = now if count.oldest_due_at is None else count.oldest_due_at
            metrics.oldest_due_age.labels(label).set((now - oldest) / 1000)
        for topic, in_use in permits.items():
            metrics.topic_permits.labels(topic).set(in_use)
        metrics.remembered_ids.set(remembered)
        metrics.store_memory.set(server.memory)
        metrics.store_memory_max.set(server.max_memory)

    def _sum_by_label(self, counts: dict[str, TopicCounts]) -> dict[str, TopicCounts]:
        """Return the counts by label: a topic keeps its own label while it has tasks, the rest are summed."""
        topics = dict.fromkeys([*(topic for topic in self._labelled if topic in counts), *counts])
        self._labelled = dict.fromkeys(islice(topics, MAX_TOPICS))
        by_label: dict[str, TopicCounts] = {}
        for topic, count in counts.items():
            label = topic if topic in self._labelled else OTHER
            by_label[label] = by_label.get(label, NO_TASKS).plus(count)
        return by_label
