"""The origins that asked for a pause by `Retry-After`, and their slow start after it, as this process knows them.

A hold is of one origin in one topic. All instances share the holds in the store: each learns with the policies, once a
second, which topics have any, and reads the holds of those that are due.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from later.core.errors import LaterError
from later.core.origin import Origin
from later.store.open import Store
from later.store.origin_holds import MAX_HOLDS
from later.worker.origin_share import on_grid
from later.worker.slow_start import Ramp

log = structlog.get_logger("later.held_origins")

HOLD_GRID_MS = 250
"""Holds for a `Retry-After` end at multiples of this, so that a hundred busy answers at once make one hold."""
READ_EVERY_MS = 500
"""How often the holds of a topic that has any are read."""
KEPT_MS = 10_000
"""How long a hold is known after its slow start: tasks that waited for it are still to come."""
RAMP_POLL_MS = 100
"""How long a task waits of which its origin's slow start does not allow the call yet."""

SPACING_MS = 1
"""The distance between the tasks that wait for a held origin: 1,000 a second come due again when its hold ends."""


class _OriginHold:
    """The hold of an origin, and its slow start after it. Times are in ms."""

    __slots__ = ("line_end", "ramp_ms", "started", "until")

    def __init__(self, until: int, ramp_ms: int) -> None:
        self.until = until
        self.ramp_ms = ramp_ms
        self.started = 0
        """Deliveries that have started since the hold ended."""
        self.line_end = 0.0
        """When the last of the tasks comes due that wait for it."""

    @property
    def full_speed_at(self) -> int:
        return self.until + self.ramp_ms


class HeldOrigins:
    """The holds of origins. Topics without holds cost nothing. `slots` are those of this worker."""

    def __init__(self, store: Store, slots: int) -> None:
        self._store = store
        self._slots = slots
        self._topics: dict[str, dict[Origin, _OriginHold]] = {}
        self._read_at: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        """True if an origin is held in the topic, or was a moment ago."""
        return topic in self._topics

    async def refresh(self, due_topics: Iterable[str], now: int) -> None:
        """Read the holds of due topics that have any. Raises StoreDown."""
        if self._topics:
            self._forget_ended(now)
        held = self._store.policies.held_origin_topics
        if not held:
            return
        topics = [
            topic
            for topic in {topic for topic in due_topics if held.get(topic, 0) > now}
            if not self._read_at.get(topic, -READ_EVERY_MS) <= now < self._read_at.get(topic, 0) + READ_EVERY_MS
        ]
        if not topics:
            return
        self._read_at = {topic: at for topic, at in self._read_at.items() if at + READ_EVERY_MS > now}
        for topic, holds in (await self._store.origin_holds.read(topics, now)).items():
            self._read_at[topic] = now
            for origin, until in holds.items():
                self._add(topic, origin, until)

    async def hold(self, topic: str, origin: Origin, until: int) -> None:
        """Let no instance call the origin for this topic before `until` (ms), because it asked for that."""
        until = on_grid(until, HOLD_GRID_MS)
        if not self._add(topic, origin, until):
            return
        try:
            await self._store.origin_holds.hold(topic, origin, until, self._store.clock.now().low)
        except LaterError as error:
            log.debug("origin not held", topic=topic, origin=origin.authority, reason=str(error))

    def waits_until(self, topic: str, origin: Origin, now: int, at_latest: int | None = None) -> int | None:
        """Return when (ms) a task of the origin is due again, at most `at_latest`; None if the call may begin."""
        hold = self._topics.get(topic, {}).get(origin)
        if hold is None:
            return None
        if now >= hold.until:
            ramp = Ramp(hold.until, hold.full_speed_at)
            if now >= hold.full_speed_at or hold.started < ramp.allowed_starts(now, self._slots):
                return None
        if at_latest is not None and at_latest < hold.until:
            return at_latest  # without a place in the line: it will need one when it is looked at again
        hold.line_end = max(hold.line_end + SPACING_MS, hold.until, now + RAMP_POLL_MS)
        due_at = on_grid(hold.line_end)
        return due_at if at_latest is None else min(due_at, at_latest)

    def count_started(self, topic: str, origin: Origin) -> None:
        hold = self._topics.get(topic, {}).get(origin)
        if hold is not None:
            hold.started += 1

    def holds(self, topic: str, origin: Origin) -> bool:
        """Return True if the origin is held in the topic, or was a moment ago."""
        return origin in self._topics.get(topic, {})

    def _add(self, topic: str, origin: Origin, until: int) -> bool:
        """Remember a hold. Returns False if it is known."""
        holds = self._topics.setdefault(topic, {})
        known = holds.get(origin)
        if known is not None and known.until >= until:
            return False
        holds[origin] = _OriginHold(until, self._store.policies.latest.for_topic(topic).ramp_ms)
        if len(holds) > MAX_HOLDS:
            del holds[min(holds, key=lambda held: holds[held].until)]
        return True

    def _forget_ended(self, now: int) -> None:
        for topic, holds in list(self._topics.items()):
            for origin in [origin for origin, hold in holds.items() if hold.full_speed_at + KEPT_MS <= now]:
                del holds[origin]
            if not holds:
                del self._topics[topic]
