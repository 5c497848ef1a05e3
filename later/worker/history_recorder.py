"""Adds to the history what the counters of this process grow by: at the end of each ten seconds, and at its stop.

Each process does so by itself, also one of several of a daemon: the store adds them up. What was written stays when a
process is killed, and its successor counts from 0, so nothing is counted twice.
"""

from __future__ import annotations

import structlog

from later.core.delivery_sample import DeliverySample
from later.core.errors import LaterError
from later.core.held import Held
from later.core.history import (
    COUNT_FIELDS,
    DEAD_FIELDS,
    DURATION_BUCKETS,
    GAUGE_FIELDS,
    HELD_LATENESS_BUCKETS,
    LATENESS_BUCKETS,
    SHORT,
    growth,
)
from later.core.snapshot import Snapshot
from later.metrics import Metrics
from later.store.history import HistoryEntry
from later.store.open import Store
from later.worker.ticker import TickResult

log = structlog.get_logger("later.history")

RECORD_EVERY_MS = SHORT.length_ms
RETRY_MS = 1000
"""How soon the store's time is asked for again if it is not known."""


class HistoryRecorder:
    """Tick function that writes what this process has counted in a slot when the slot has ended.

    An idle process writes, too, that it was there: otherwise nobody could tell idleness from absence. `sample` is that
    of the deliveries of this process, if it makes any.
    """

    def __init__(self, store: Store, metrics: Metrics, sample: DeliverySample | None = None) -> None:
        self._store = store
        self._metrics = metrics
        self._sample = sample
        self._before: dict[str, int] = {}
        """The counters as they were read last."""
        self._since: int | None = None
        """The time (ms) since which the counters have grown; None before the store's time was known."""
        self._failing = False

    async def tick(self, now: int) -> TickResult:
        """Write the slot that has ended, if one has; return when (ms, on this process's clock) the next one ends."""
        try:
            store_now = (await self._store.time.now()).low
        except LaterError:
            return TickResult(0, now + RETRY_MS)
        slot = SHORT.slot_of(store_now)
        if self._since is None:
            self._since = store_now
        elif SHORT.slot_of(self._since) != slot:
            await self._write(self._since, store_now, self._read())
        return TickResult(0, now + slot + SHORT.length_ms - store_now)

    async def record_census(self, snapshot: Snapshot) -> None:
        """Set the gauges of the slot in which a census began."""
        total = snapshot.total
        gauges = {
            "due": total.all_due,
            "delay": total.delay,
            "unack": total.unack,
            "error": total.error,
            "dead_tasks": total.dead,
            "memory": snapshot.store.memory,
        }
        entry = HistoryEntry(
            gauges={GAUGE_FIELDS[series]: value for series, value in gauges.items()},
            due_tasks={row.topic: row.due for row in snapshot.rows if row.due},
        )
        await self._add(snapshot.at, self._store.clock.now().low, entry)

    async def write_last(self) -> None:
        """Write what was counted since the last slot, if anything was, at the end of the process."""
        try:
            now = (await self._store.time.now()).low
        except LaterError as error:
            log.debug("history not written", reason=str(error))
            return
        entry = self._read()
        if entry.counts or entry.topics or entry.deliveries:
            await self._write(now if self._since is None else self._since, now, entry)

    def _read(self) -> HistoryEntry:
        """Return what the counters have grown by since the last call."""
        after = read_counts(self._metrics)
        before, self._before = self._before, after
        return HistoryEntry(
            counts=growth(before, after),
            topics=self._metrics.activity.take(),
            deliveries=[] if self._sample is None else self._sample.take(),
        )

    async def _write(self, at: int, now: int, entry: HistoryEntry) -> None:
        """Add to the slot of `at`, in which the counters have grown until now."""
        self._since = now
        await self._add(at, now, entry)

    async def _add(self, at: int, now: int, entry: HistoryEntry) -> None:
        """Add to the slot of `at`. What cannot be written is lost: it may have been written all the same."""
        try:
            await self._store.history.add(at, now, entry)
        except LaterError as error:
            report = log.debug if self._failing else log.warning
            report("history not written", reason=str(error))
            self._failing = True
        else:
            self._failing = False


def read_counts(metrics: Metrics) -> dict[str, int]:
    """Return the counters of this process by their fields in the history. What consumers say counts as an outcome."""
    outcomes, consumed, deaths = metrics.deliveries.totals, metrics.activity.consumed, metrics.topic_dead.totals
    by_series = {
        "created": metrics.tasks_created.count,
        "duplicate": metrics.tasks_duplicate.count,
        "refused": metrics.tasks_refused.count,
        "retries": metrics.retries.count,
        **{kind: int(outcomes[kind]) + consumed.get(kind, 0) for kind in ("done", "failed", "busy", "gone")},
    }
    counts = {COUNT_FIELDS[series]: count for series, count in by_series.items()}
    counts |= {field: int(deaths[reason]) for reason, field in DEAD_FIELDS.items()}
    lateness = {held: metrics.lateness.labels(held).by_bucket for held in metrics.observe_lateness}
    counts |= zip(LATENESS_BUCKETS.fields, lateness.pop(Held.NO), strict=True)
    counts |= zip(HELD_LATENESS_BUCKETS.fields, map(sum, zip(*lateness.values(), strict=True)), strict=True)
    counts |= zip(DURATION_BUCKETS.fields, metrics.delivery_duration.by_bucket, strict=True)
    return counts
