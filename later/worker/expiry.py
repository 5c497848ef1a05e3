"""Tick functions that move expired tasks to dead, and that remove dead tasks whose retention is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from later.core.errors import NodeDown, first_fault
from later.core.policy import Policy
from later.core.retry import expiry_failure
from later.metrics import Metrics
from later.store.open import Store
from later.store.scripts import MAX_TASKS
from later.store.types import DueTopic
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import TickResult

log = structlog.get_logger("later.expiry")

EXPIRY_EVERY_MS = 500
SWEEP_EVERY_MS = 1000
SWEEP_TOPICS = 500
"""Topics in one page of the scan for dead tasks."""
SWEEP_PAGES = 10
"""Pages that one tick reads, at most."""
SWEEP_TASKS = 1000
"""Dead tasks after which one tick stops."""


class Expirer:
    """Tick function that moves expired tasks from delay or error to dead, or to their dead-letter topics.

    So no task waits beyond its ttl.
    """

    def __init__(self, *, store: Store, metrics: Metrics, shard_selector: ShardSelector) -> None:
        self._store = store
        self._metrics = metrics
        self._shard_selector = shard_selector

    async def tick(self, now: int) -> TickResult:
        expired = await self._store.expiry.expired_tasks(now, self._shard_selector.for_upkeep("expiry", now))
        if not expired:
            return TickResult(0, None)
        deaths = [(task, expiry_failure(task.failure, now, keep=self._store.keep_failures)) for task in expired]
        policies = await self._store.policies.current()
        if policies.leave_tasks:
            results = await self._store.dead_letter_topics.expire(deaths, now, policies)
        else:
            results = await self._store.expiry.expire(deaths, now)
        died = [task for task, result in zip(expired, results, strict=True) if result is True]
        for task in died:
            self._metrics.count_death(task.topic, "expired", task.id)
            log.warning("task dead", id=task.id, topic=task.topic, reason="expired")
        if (error := first_fault(results)) is not None:
            raise error
        page_is_full = max(Counter(task.shard for task in expired).values()) >= MAX_TASKS
        return TickResult(len(died), now if page_is_full else None)


class DeadSweeper:
    """Tick function that removes dead tasks `dead_keep` after their death."""

    def __init__(self, *, store: Store, metrics: Metrics, shard_selector: ShardSelector) -> None:
        self._store = store
        self._metrics = metrics
        self._shard_selector = shard_selector
        self._shards: Sequence[int] | None = None
        """The shards of the scan: the same ones until its end."""
        self._cursors: Mapping[int, int] = {}
        """The cursors, by shard, with which the next tick goes on with the scan."""

    async def tick(self, now: int) -> TickResult:
        policies = await self._store.policies.current()
        removed = pages = 0
        if not self._cursors:
            self._shards = self._shard_selector.for_upkeep("dead", now)
        while removed < SWEEP_TASKS and pages < SWEEP_PAGES:
            died_by = now - policies.shortest_dead_keep_ms
            entries, self._cursors = await self._store.expiry.topics_with_dead(
                died_by, SWEEP_TOPICS, self._cursors, self._shards
            )
            for entry in entries:
                policy = policies.for_topic(entry.topic)
                if entry.at <= now - policy.dead_keep_ms:
                    removed += await self._sweep_topic(entry, policy, now, SWEEP_TASKS - removed)
            pages += 1
            if not self._cursors:
                break
        self._metrics.dead_removed.inc(removed)
        return TickResult(removed, now if removed >= SWEEP_TASKS else None)

    async def _sweep_topic(self, topic: DueTopic, policy: Policy, now: int, limit: int) -> int:
        """Remove about `limit` of those tasks of the topic that were kept for long enough; return their number."""
        expiry, died_by, removed = self._store.expiry, now - policy.dead_keep_ms, 0
        while removed < limit:
            try:
                dead = await expiry.dead_tasks(topic, died_by, now, policy)
            except NodeDown:
                break  # its shard is away
            if not dead:
                break
            results = await expiry.sweep(dead, died_by)
            swept = sum(result is True for result in results)
            if not swept:
                break  # another worker sweeps this topic, or the store fails: the next tick tries again
            removed += swept
        return removed
