"""Events for operators: what happens to topics and to the store, as tasks of later's own in a reserved topic."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from later.core.admit import resolve_ttl_ms
from later.core.clock import rfc3339
from later.core.policy import Deliver
from later.core.policy_scopes import Policies, namespace_from_topic
from later.core.task import Task
from later.core.validation import RESERVED_NAMESPACE

EVENTS_TOPIC = f"{RESERVED_NAMESPACE}/events"
"""The topic of the events' tasks. Callers create none in its namespace."""
EVENTS_REMEMBERED_MS = 3_600_000
"""How long the id of an event is remembered: no instance that makes the same one is later than that."""
ABOUT_OTHERS = "other"
"""The topic, and the reason, of an event that sums up what has none of its own."""


class EventType(StrEnum):
    """The types of events, as receivers see them."""

    TASKS_DEAD = "later.tasks.dead"
    TOPIC_LATE = "later.topic.late"
    TOPIC_PAUSED = "later.topic.paused"
    STORE_FULL = "later.store.full"

    @property
    def quiet_ms(self) -> int:
        """The time in which no other event follows one of this type about the same subject."""
        return 600_000 if self.is_state else 60_000

    @property
    def is_state(self) -> bool:
        """True if it tells of a state that lasts: what is noted of it in the quiet time is no further event."""
        return self in (EventType.TOPIC_LATE, EventType.STORE_FULL)


class EventSubject(NamedTuple):
    """The subject of an event: its type, the topic, and the reason of deaths; "" if there is none.

    Of a pause of all topics of a namespace, `reason` is the namespace.
    """

    type: EventType
    topic: str = ""
    reason: str = ""

    @property
    def is_reserved(self) -> bool:
        """True if no event is made of it: events about events would have no end."""
        return namespace_from_topic(self.topic) == RESERVED_NAMESPACE


class EventCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of times that something has happened to a subject, since when (ms), to which task first, and more."""

    count: int
    since: int
    first_id: str = ""
    details: Mapping[str, Any] = {}


class OperatorEvent(NamedTuple):
    """An event that is to be sent, made at `at` (ms). Its id is the same wherever it is made."""

    id: str
    subject: EventSubject
    counted: EventCount
    at: int


def encode_event(event: OperatorEvent) -> str:
    """Return the event as JSON, in the form of Standard Webhooks: its type, its time, and the data of its type."""
    subject, count = event.subject, event.counted
    data: dict[str, Any] = {}
    if subject.type is EventType.TASKS_DEAD:
        data = {"topic": subject.topic, "reason": subject.reason, "count": count.count, "first_id": count.first_id}
    elif subject.topic:
        data = {"topic": subject.topic}
    body = {
        "type": subject.type.value,
        "timestamp": rfc3339(event.at),
        "data": {**data, **count.details, "since": rfc3339(count.since)},
    }
    return msgspec.json.encode(body).decode()


def event_task(event: OperatorEvent, url: str, policies: Policies, now: int) -> Task:
    """Return the task that sends an event to `url`, at `now` (ms). In a pulled topic consumers claim it instead."""
    policy = policies.for_topic(EVENTS_TOPIC)
    ttl_ms = resolve_ttl_ms(None, policy)
    return Task(
        id=event.id,
        own_id=True,
        topic=EVENTS_TOPIC,
        callback="" if policy.deliver is Deliver.PULL else url,
        content=encode_event(event),
        headers={},
        max_retry=policy.retry,
        created_at=now,
        execute_at=now,
        expires_at=None if ttl_ms is None else now + ttl_ms,
        remember_ms=EVENTS_REMEMBERED_MS,
    )
