"""The census: counts every topic of the store, and finds what holds those that have due tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from itertools import islice

from later.core.errors import NodeDown
from later.core.held import Held, find_hold
from later.core.policy_scopes import Policies
from later.core.snapshot import CountedTopic, Snapshot, SnapshotBuilder, StoreFacts
from later.daemon.pace import Pace
from later.metrics import Metrics
from later.store.open import Store
from later.store.stats import HEARTBEAT_TIMEOUT_MS
from later.store.topic_counts import TopicCounts
from later.worker.hold_history import HoldHistory

SAME_HOLD_MS = 60_000
"""How long a topic still counts as held after it was found held: each permit lets it go for a moment."""
CENSUSES_APART = 3
"""The same where a census takes long, in times of that: the next one begins after twice as long at most."""
SLICE = 50
"""Topics after which other work of this process, such as deliveries, gets its turn: after some 2 ms."""


class Census:
    """Counts topics. It gives labels to those that need one in metrics, and knows what held them a moment ago."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._labels = metrics.topics
        self._history = HoldHistory(SAME_HOLD_MS)
        self._workers = 0
        """How many workers sent heartbeats when these were read last: a node that is away may have them."""
        self.steps = 0
        """How many steps all counts together have made: a count that takes long and goes on does not hang."""

    async def count(self) -> Snapshot:
        """Count all topics. Raises StoreDown."""
        began = time.monotonic()
        now, misses = (await self._store.time.now()).low, self._store.client.away_tags.misses
        pace = Pace(time.monotonic, asyncio.sleep)

        async def note_and_wait(buckets: int) -> None:
            self._note_step()
            await pace.wait(buckets)

        counts = await self._store.stats.tally(now, note_and_wait)
        facts = await self._read_facts(now)
        policies = await self._store.policies.current()
        self._labels.refresh(counts)
        limited = [
            topic
            async for some in _in_turns(counts.items() if policies.has_limits else [])
            for topic, count in some
            if (count.due or topic in self._labels) and policies.for_topic(topic).concurrency
        ]
        permits = await self._store.permits.in_use(limited, now)
        builder = SnapshotBuilder()
        async for some in _in_turns(counts.drain()):
            self._note_step()
            builder.add([self._row(topic, count, policies, permits, now) for topic, count in some])
        took_ms, partial = round((time.monotonic() - began) * 1000), self._store.client.away_tags.misses != misses
        self._remember_holds_for(took_ms)
        return builder.finish(at=now, took_ms=took_ms, store=facts, partial=partial)

    def _note_step(self) -> None:
        self.steps += 1

    def adopt(self, snapshot: Snapshot) -> None:
        """Take over what another instance has found: which topics have labels, and what holds topics."""
        self._remember_holds_for(snapshot.took_ms)
        names = [row.topic for row in snapshot.rows if row.has_label]
        self._labels.adopt(names)
        self._labels.refresh(names)
        for row in snapshot.rows:
            if row.held is not Held.NO:
                self._history.add(row.topic, row.held, snapshot.at, snapshot.at)

    def _remember_holds_for(self, took_ms: int) -> None:
        """Let holds that were found count until after the next census, if this one took so long."""
        self._history.same_hold_ms = max(SAME_HOLD_MS, CENSUSES_APART * took_ms)

    async def _read_facts(self, now: int) -> StoreFacts:
        stats = self._store.stats
        remembered, server = await stats.remembered_ids(), await stats.server_facts()
        with suppress(NodeDown):
            self._workers = sum(at > now - HEARTBEAT_TIMEOUT_MS for at in (await stats.workers()).values())
        return StoreFacts(
            name=server.name,
            version=server.version,
            memory=server.memory,
            max_memory=server.max_memory,
            workers=self._workers,
            remembered_ids=remembered,
        )

    def _row(
        self, topic: str, count: TopicCounts, policies: Policies, permits: Mapping[str, int], now: int
    ) -> CountedTopic:
        may_be_held = policies.can_hold or count.hold is not None
        hold = find_hold(policies.for_topic(topic), count.hold, permits.get(topic, 0), now) if may_be_held else Held.NO
        held = self._find_held(topic, count.oldest_due_at, hold, now) if count.oldest_due_at is not None else Held.NO
        return count.of_topic(
            topic,
            held=held,
            is_paused=hold is Held.PAUSE,
            has_label=topic in self._labels,
            permits=permits.get(topic),
        )

    def _find_held(self, topic: str, oldest_due_at: int, hold: Held, now: int) -> Held:
        """Return what holds a topic that has due tasks.

        One in slow start counts as held by what it was held by before, as far as that is known, otherwise as paused.
        """
        ramps, history = self._store.policies.ramps, self._history
        if hold is Held.NO and not ramps and history.is_empty:
            return hold
        before = history.current(topic, now)
        if hold is Held.NO and ramps.get(topic, 0) > now:
            hold = Held.PAUSE if before is Held.NO else before
        if hold is not Held.NO:
            history.add(topic, hold, now, now)
        elif before is not Held.NO:
            hold = history.held_by(topic, oldest_due_at, now)
        return hold


async def _in_turns(counts: Iterable[tuple[str, TopicCounts]]) -> AsyncIterator[list[tuple[str, TopicCounts]]]:
    """Yield the topics in slices; many of them must not block this process."""
    items = iter(counts)
    while some := list(islice(items, SLICE)):
        yield some
        await asyncio.sleep(0)
