"""Events for operators: counts of one process while it works, and the tick function that has them sent.

Each count is a look-up in a dictionary that cannot fail, so no settle waits for an event. The tick function adds the
counts to those of all instances, and creates the tasks of the events that are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from later.core.audit_event import AuditAction, AuditEvent, AuditOutcome
from later.core.errors import LaterError, StoreDown, first_fault
from later.core.held import Held
from later.core.operator_event import (
    ABOUT_OTHERS,
    EVENTS_TOPIC,
    EventCount,
    EventSubject,
    EventType,
    OperatorEvent,
    event_task,
)
from later.core.overview import HIGH_MEMORY_SHARE, OVERDUE_MS
from later.core.snapshot import Snapshot, sort_rows
from later.core.validation import RESERVED_NAMESPACE
from later.metrics import Metrics
from later.store.open import Store
from later.worker.ticker import TickResult

log = structlog.get_logger("later.events")

EVENTS_EVERY_MS = 1000
LOOK_EVERY_MS = 10_000
"""How often the store is asked for events that are due though nothing happens here, such as the rest of a storm."""
OLD_MS = 60_000
"""How long after the end of its census a snapshot is old: it may be from before everything was down."""
MAX_SUBJECTS = 100
"""Subjects of which a process counts events by themselves, between two ticks. The rest is summed as `other`."""
MAX_WAITING = 1000
"""Tasks of events that wait for their receiver. While there are as many, none is created, and the counts grow on."""
MAX_DEAD = 10_000
"""Dead tasks of events. While there are as many, none is created: their receiver has refused all of them."""
PAUSING_ACTIONS = frozenset({AuditAction.POLICY_CHANGED, AuditAction.TOPIC_PAUSED})
"""The actions that may pause. Their events have `before` and `after`: the settings of a policy."""


class _EventTally:
    """The counts of a subject since the last tick."""

    __slots__ = ("count", "details", "first_id", "since_s")

    def __init__(self, since_s: float, first_id: str, details: Mapping[str, Any]) -> None:
        self.count = 0
        self.since_s = since_s
        self.first_id = first_id
        self.details = details


class EventCollector:
    """Counts of what events are made of. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._tallies: dict[EventSubject, _EventTally] = {}

    @property
    def is_empty(self) -> bool:
        return not self._tallies

    def note_death(self, topic: str, reason: str, id: str) -> None:
        """Count a task that died."""
        self.note(EventSubject(EventType.TASKS_DEAD, topic, reason), first_id=id)

    def note_change(self, event: AuditEvent) -> None:
        """Count a pause, if the change of a policy is one: of a topic, or of all topics of a namespace."""
        if event.action not in PAUSING_ACTIONS or event.outcome is not AuditOutcome.DONE:
            return
        was_paused, is_paused = (event.details.get(name, {}).get("paused") for name in ("before", "after"))
        if was_paused or not is_paused or event.namespace == RESERVED_NAMESPACE:
            return
        if "topic" in event.details:
            self.note(EventSubject(EventType.TOPIC_PAUSED, event.details["topic"]))
        elif event.namespace is not None:
            details = {"topic": None, "namespace": event.namespace}
            self.note(EventSubject(EventType.TOPIC_PAUSED, "", event.namespace), details)

    def note_snapshot(self, snapshot: Snapshot, age_s: float) -> None:
        """Note the topics that are late though nothing holds them, the worst first, and a store that is nearly full.

        Nothing is noted of a snapshot that is old.
        """
        if 1000 * age_s - snapshot.took_ms >= OLD_MS:
            return
        for row in sort_rows(snapshot.rows, "lateness"):
            if row.oldest_due_at is None or snapshot.at - row.oldest_due_at <= OVERDUE_MS:
                break
            if row.held is Held.NO:
                late_s = (snapshot.at - row.oldest_due_at) / 1000
                details = {"lateness_s": late_s, "due": row.due}
                self.note(EventSubject(EventType.TOPIC_LATE, row.topic), details, age_s=late_s + age_s)
        memory, max_memory = snapshot.store.memory, snapshot.store.max_memory
        if max_memory and memory > HIGH_MEMORY_SHARE * max_memory:  # a full store takes no event either
            self.note(EventSubject(EventType.STORE_FULL), {"memory": memory, "max_memory": max_memory})

    def note(
        self,
        subject: EventSubject,
        details: Mapping[str, Any] | None = None,
        *,
        first_id: str = "",
        count: int = 1,
        age_s: float = 0.0,
    ) -> None:
        """Count what happened to a subject, which began `age_s` ago."""
        if subject.is_reserved:
            return
        tally = self._tallies.get(subject)
        if tally is None:
            if len(self._tallies) >= MAX_SUBJECTS:
                subject = EventSubject(subject.type, ABOUT_OTHERS, ABOUT_OTHERS)
            tally = self._tallies.get(subject)
        if tally is None:
            tally = self._tallies[subject] = _EventTally(self._monotonic() - age_s, first_id, details or {})
        tally.count += count

    def take(self, now: int) -> dict[EventSubject, EventCount]:
        """Return what was counted, at `now` (ms), and begin anew."""
        tallies, self._tallies = self._tallies, {}
        at_s = self._monotonic()
        return {
            subject: EventCount(
                count=tally.count,
                since=now - round((at_s - tally.since_s) * 1000),
                first_id=tally.first_id,
                details=tally.details,
            )
            for subject, tally in tallies.items()
        }

    def put_back(self, counts: Mapping[EventSubject, EventCount], now: int) -> None:
        """Count again what was taken at `now` (ms), because the store did not take it."""
        newer, self._tallies = self._tallies, {}
        for subject, taken in counts.items():
            age_s = (now - taken.since) / 1000
            self.note(subject, taken.details, first_id=taken.first_id, count=taken.count, age_s=age_s)
        for subject, tally in newer.items():
            age_s = self._monotonic() - tally.since_s
            self.note(subject, tally.details, first_id=tally.first_id, count=tally.count, age_s=age_s)


class EventWriter:
    """Tick function that makes the tasks of events, which call `url`. `on_created` gets their due time (ms)."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        collector: EventCollector,
        url: str,
        on_created: Callable[[int], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._collector = collector
        self._url = url
        self._on_created = on_created
        self._looked_at: int | None = None
        self._recording: asyncio.Task[list[OperatorEvent]] | None = None
        self._is_held_up = False

    async def tick(self, now: int) -> TickResult:
        """Create the tasks of the events that are due. Here `now` is a time (ms) of this process, not the store's."""
        if self._collector.is_empty and self._looked_at is not None and now - self._looked_at < LOOK_EVERY_MS:
            return TickResult(0, None)
        events = await self.record()
        if events and await self._may_create():
            await self._create(events)
        self._looked_at = now
        return TickResult(len(events), None)

    async def record(self) -> list[OperatorEvent]:
        """Add what was counted here to the counts of all instances, and return the events that are to be sent.

        It goes on when its caller is cancelled, and the next call waits for it: a stop in the middle must not have the
        counts added twice.

        Raises:
            StoreDown: what was counted is added later; if the answer was lost, perhaps again.
        """
        if self._recording is None or self._recording.done():
            self._recording = asyncio.create_task(self._record())
        return await asyncio.shield(self._recording)

    async def _record(self) -> list[OperatorEvent]:
        now = (await self._store.time.now()).low
        counts = self._collector.take(now)
        try:
            return await self._store.events.record(counts, now)
        except BaseException:
            self._collector.put_back(counts, now)
            raise

    async def flush_or_log(self) -> None:
        """Add what was counted, at the end of a process: another one sends it. If the store is away, it is lost."""
        try:
            if self._recording is not None and not self._recording.done():
                await self.record()
            if not self._collector.is_empty:
                await self.record()
        except LaterError as error:
            lost = self._collector.take(0)
            log.warning(
                "operator events lost",
                count=sum(count.count for count in lost.values()),
                topics=sorted({subject.topic for subject in lost})[:10],
                reason=str(error),
            )

    async def _may_create(self) -> bool:
        """Return False while too many tasks of events are there already. Raises StoreDown."""
        now = (await self._store.time.now()).low
        counts = (await self._store.stats.counts_and_holds([EVENTS_TOPIC], now))[EVENTS_TOPIC]
        waiting = counts.delay + counts.unack + counts.error
        was_held_up, self._is_held_up = self._is_held_up, waiting >= MAX_WAITING or counts.dead >= MAX_DEAD
        if self._is_held_up and not was_held_up:
            log.warning("operator events held up", waiting=waiting, dead=counts.dead)
        return not self._is_held_up

    async def _create(self, events: Sequence[OperatorEvent]) -> None:
        """Create the tasks of events; one that another instance has created stays as it is.

        Raises:
            StoreDown: a later tick creates those that are missing.
        """
        now, policies = (await self._store.time.now()).high, await self._store.policies.current()
        results = await self._store.tasks.create([event_task(event, self._url, policies, now) for event in events])
        ended: list[OperatorEvent] = []
        created: list[OperatorEvent] = []
        for event, result in zip(events, results, strict=True):
            if isinstance(result, StoreDown):
                continue
            ended.append(event)
            if result is True:
                created.append(event)
            elif isinstance(result, LaterError):
                log.warning("operator events lost", count=1, topics=[event.subject.topic], reason=str(result))
        self._report(created, now)
        await self._store.events.remove(ended)
        if (error := first_fault(result for result in results if isinstance(result, StoreDown))) is not None:
            raise error

    def _report(self, created: Sequence[OperatorEvent], now: int) -> None:
        """Count and log events whose tasks are new, and wake who claims them."""
        if not created:
            return
        self._metrics.count_created([EVENTS_TOPIC] * len(created))
        for event in created:
            self._metrics.operator_events.labels(event.subject.type.value).inc()
            log.info("operator event", id=event.id, topic=event.subject.topic, count=event.counted.count)
        self._on_created(now)
