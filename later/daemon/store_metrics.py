"""Gauges of the store, updated in the background: a scrape of /metrics must cost the store nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import islice

from later.core.errors import LaterError
from later.core.held import Held, find_hold
from later.core.policy_scopes import Policies
from later.metrics import OTHER, Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.store.stats import HEARTBEAT_TIMEOUT_MS, TopicCounts
from later.worker.hold_history import HoldHistory
from later.worker.ticker import TickResult

SAME_HOLD_MS = 60_000
"""How long a topic still counts as held after it was found held: each permit lets it go for a moment."""
SLICE = 500
"""Topics after which other work of this process gets its turn."""


class StoreMetrics:
    """Tick function that updates the gauges of the whole store."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._history = HoldHistory(SAME_HOLD_MS)

    async def tick(self, now: int) -> TickResult:
        try:
            await self._update((await self._store.time.now()).low)
        except LaterError:
            self._metrics.store.up.set(0)
            raise
        self._metrics.store.up.set(1)
        return TickResult(0, None)

    async def _update(self, now: int) -> None:
        """Read all values first: a store that fails halfway must not leave half of them."""
        stats, topics, gauges = self._store.stats, self._metrics.topics, self._metrics.store
        counts = await stats.counts(now)
        remembered, server, workers = await stats.remembered_ids(), await stats.server_facts(), await stats.workers()
        policies = await self._store.policies.current()
        topics.refresh(counts)
        limited = [
            topic
            async for some in _in_turns(counts if policies.has_limits else {})
            for topic, count in some
            if (count.due or topic in topics) and policies.for_topic(topic).concurrency
        ]
        permits = await self._store.permits.in_use(limited, now)
        held = await self._find_holds(counts, policies, permits, now)
        paused = [
            topic
            async for some in _in_turns(counts)
            for topic, count in some
            if (policies.can_hold or count.hold is not None)
            and find_hold(policies.for_topic(topic), count.hold, 0, now) is Held.PAUSE
        ]
        await self._show_topics(counts, held, now)
        gauges.topic_permits.clear()
        for topic in limited:
            if topic in topics:
                gauges.topic_permits.labels(topic).set(permits[topic])
        gauges.topic_count.set(len(counts))
        gauges.topics_paused.set(len(paused))
        gauges.workers.set(sum(at > now - HEARTBEAT_TIMEOUT_MS for at in workers.values()))
        gauges.remembered_ids.set(remembered)
        gauges.memory.set(server.memory)
        gauges.memory_max.set(server.max_memory)
        gauges.set_version(f"{server.name} {server.version}")

    async def _find_holds(
        self, counts: Mapping[str, TopicCounts], policies: Policies, permits: Mapping[str, int], now: int
    ) -> dict[str, Held]:
        """Return what holds each topic that has due tasks; nothing holds those that are missing.

        One in slow start counts as held by what it was held by before, as far as that is known, otherwise as paused.
        """
        held: dict[str, Held] = {}
        ramps, history = self._store.policies.ramps, self._history
        may_be_held = policies.can_hold or bool(ramps) or not history.is_empty
        async for some in _in_turns(counts):
            for topic, count in some:
                if count.oldest_due_at is None or not (may_be_held or count.hold):
                    continue
                kind = find_hold(policies.for_topic(topic), count.hold, permits.get(topic, 0), now)
                before = history.current(topic, now)
                if kind is Held.NO and ramps.get(topic, 0) > now:
                    kind = Held.PAUSE if before is Held.NO else before
                if kind is not Held.NO:
                    history.add(topic, kind, now, now)
                elif before is not Held.NO:
                    kind = history.held_by(topic, count.oldest_due_at, now)
                held[topic] = kind
        return held

    async def _show_topics(self, counts: Mapping[str, TopicCounts], held: Mapping[str, Held], now: int) -> None:
        """Show the topics by label: those that have none of their own are summed."""
        topics, gauges = self._metrics.topics, self._metrics.store
        by_label: dict[str, list[int]] = {}
        due: dict[tuple[str, Held], tuple[int, int]] = {}
        async for some in _in_turns(counts):
            for topic, count in some:
                label = topic if topic in topics else OTHER
                sizes = by_label.setdefault(label, [0] * len(Bucket))
                for position, number in enumerate((count.delay, count.unack, count.error, count.dead)):
                    sizes[position] += number
                key = (label, held.get(topic, Held.NO))
                so_far, oldest = due.get(key, (0, now))
                due[key] = (so_far + count.due, min(oldest, count.oldest_due_at or oldest))
        for gauge in (gauges.tasks, gauges.tasks_due, gauges.oldest_due_age):
            gauge.clear()
        for label, sizes in by_label.items():
            for bucket, number in zip(Bucket, sizes, strict=True):
                gauges.tasks.labels(bucket.value, label).set(number)
        for (label, kind), (number, oldest) in due.items():
            gauges.tasks_due.labels(label, kind.value).set(number)
            gauges.oldest_due_age.labels(label, kind.value).set((now - oldest) / 1000)


async def _in_turns(counts: Mapping[str, TopicCounts]) -> AsyncIterator[list[tuple[str, TopicCounts]]]:
    """Yield the topics in slices; many of them must not block this process."""
    items = iter(counts.items())
    while some := list(islice(items, SLICE)):
        yield some
        await asyncio.sleep(0)
