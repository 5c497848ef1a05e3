"""Gauges of the store, updated in the background: a scrape of /metrics must cost the store nothing."""

from __future__ import annotations

from collections.abc import Callable

from later.core.errors import LaterError, NodeDown
from later.core.snapshot import DueSum, Snapshot, TopicSums, sum_rows
from later.daemon.shared_census import SharedCensus
from later.metrics import OTHER, Metrics
from later.worker.ticker import TickResult


class StoreMetrics:
    """Tick function that updates the gauges of the whole store from the snapshot of any instance."""

    def __init__(self, census: SharedCensus, metrics: Metrics) -> None:
        self._census = census
        self._metrics = metrics
        self._shown: Snapshot | None = None
        self.on_snapshot: Callable[[Snapshot, float], None] | None = None
        """Called with each new snapshot, and its age (s)."""

    async def tick(self, now: int) -> TickResult:
        try:
            again_in_ms = await self._census.update()
        except LaterError as error:
            self._metrics.store.up.set(isinstance(error, NodeDown))
            raise
        self._metrics.store.up.set(1)
        snapshot = self._census.latest
        if snapshot is not None and snapshot is not self._shown:
            self.show(snapshot)
            self._shown = snapshot
            if self.on_snapshot is not None:
                self.on_snapshot(snapshot, self._census.age_s)
        return TickResult(0, now + again_in_ms)

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot.

        The topics by label are those of the instance that has counted, so that the sum over all labels is right.
        """
        gauges, facts = self._metrics.store, snapshot.store
        for gauge in (gauges.tasks, gauges.tasks_due, gauges.oldest_due_age, gauges.topic_permits):
            gauge.clear()
        for row in snapshot.rows:
            if row.has_label:
                self._show_topic(row.topic, sum_rows([row]), snapshot.at)
                if row.permits is not None:
                    gauges.topic_permits.labels(row.topic).set(row.permits)
        if snapshot.others.topics:
            self._show_topic(OTHER, snapshot.others, snapshot.at)
        gauges.topic_count.set(snapshot.total.topics)
        gauges.topics_paused.set(snapshot.total.paused)
        gauges.workers.set(facts.workers)
        gauges.remembered_ids.set(facts.remembered_ids)
        gauges.memory.set(facts.memory)
        gauges.memory_max.set(facts.max_memory)
        gauges.set_version(f"{facts.name} {facts.version}")

    def _show_topic(self, label: str, sums: TopicSums, at: int) -> None:
        gauges = self._metrics.store
        for state in ("delay", "unack", "error", "dead"):
            gauges.tasks.labels(state, label).set(getattr(sums, state))
        for held, some in sums.due.items():
            gauges.tasks_due.labels(label, held.value).set(some.due)
            gauges.oldest_due_age.labels(label, held.value).set(_age_s(some, at))


def _age_s(some: DueSum, at: int) -> float:
    return 0.0 if some.oldest_due_at is None else max(at - some.oldest_due_at, 0) / 1000
