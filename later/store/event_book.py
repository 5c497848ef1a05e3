"""Operator events on their way into tasks: the counts of all instances, and the outbox of events to be sent.

Every instance adds what it has counted, and makes events of what is due, in one step. So there is one event, of the
counts of all, whichever instance is first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from later.core.operator_event import EventCount, EventSubject, EventType, OperatorEvent
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Argument

MAX_SUBJECTS = 200
"""Subjects of events that are counted by themselves; what happens to others meanwhile is summed up."""
MAX_EVENTS = 500
"""Events in the outbox. While it is full, the counts grow on."""

log = structlog.get_logger("later.events")
_encode = msgspec.json.Encoder().encode


class _StoredEvent(msgspec.Struct):
    """An event in the outbox. Its type may be one that only a later version knows."""

    type: str
    topic: str
    reason: str
    count: int
    since: int
    first_id: str
    details: str
    at: int


_decode = msgspec.json.Decoder(_StoredEvent, strict=False).decode
_TYPES = frozenset(type.value for type in EventType)
_decode_details = msgspec.json.Decoder(dict[str, object]).decode


class EventBook:
    """The counts and the outbox. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._counts = keys.event_counts
        self._outbox = keys.event_outbox

    async def record(self, counts: Mapping[EventSubject, EventCount], now: int) -> list[OperatorEvent]:
        """Add these counts at `now` (ms), and return all events that are to be sent, as far as this version knows them.

        Raises:
            StoreDown: the counts may have been added.
            StoreFull: they were not.
        """
        arguments: list[Argument] = [now, MAX_SUBJECTS, MAX_EVENTS]
        for subject, count in counts.items():
            type = subject.type
            arguments += [type.value, subject.topic, subject.reason, type.quiet_ms, int(not type.is_state)]
            arguments += [count.count, count.since, count.first_id, _encode(count.details)]
        command = scripts.RECORD_EVENTS.call([self._counts, self._outbox], arguments)
        events, unreadable = list[OperatorEvent](), list[bytes]()
        for id, stored in pairs(await self._client.execute("events", command)):
            try:
                event = _parse_event(id, stored)
            except ValueError:  # those of msgspec are such errors, too
                unreadable.append(id)
                continue
            if event is not None:
                events.append(event)
        if unreadable:
            log.warning("operator events lost", count=len(unreadable), topics=[], reason="they cannot be read")
            await self._client.execute("events", ("HDEL", self._outbox, *unreadable))
        return events

    async def remove(self, events: Sequence[OperatorEvent]) -> None:
        """Remove events from the outbox, because their tasks have been created, or never can be."""
        if events:
            await self._client.execute("events", ("HDEL", self._outbox, *(event.id for event in events)))


def _parse_event(id: bytes, stored: bytes) -> OperatorEvent | None:
    """Return an event of the outbox; None if it is one of a later version.

    Raises:
        ValueError: later did not write it so.
    """
    event = _decode(stored)
    details = _decode_details(event.details)
    if event.type not in _TYPES:
        return None
    count = EventCount(count=event.count, since=event.since, first_id=event.first_id, details=details)
    return OperatorEvent(id.decode(), EventSubject(EventType(event.type), event.topic, event.reason), count, event.at)
