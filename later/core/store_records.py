"""Records: all that one store holds and another one can take over, each as bytes, wherever in a store it lies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class FieldKind(StrEnum):
    """The hashes of which every field is taken over as it stands: its name in a line of an export."""

    POLICY = "policy"
    QUEUE = "queue"
    API_KEY = "api-key"
    KEY_USE = "key-use"
    SIGNING = "signing"
    EVENT = "event"
    EVENT_COUNT = "event-count"
    SETTING = "setting"


class TimeKind(StrEnum):
    """The sorted sets of which every member is taken over as it stands: its name in a line of an export."""

    REMEMBERED = "remembered"
    RAMP = "ramp"


class TaskEntry(NamedTuple):
    """A task: its packed id, the bucket that it is in and its score there (ms), its body, and what the store adds.

    `attempts` and `failure` are its entries beside the pool; None if it has none.
    """

    id: bytes
    topic: bytes
    bucket: str
    at: int
    body: bytes
    attempts: bytes | None
    failure: bytes | None


class FieldEntry(NamedTuple):
    """A field of a hash that lies in no shard."""

    kind: FieldKind
    name: bytes
    value: bytes


class TimeEntry(NamedTuple):
    """A member of a sorted set, and its time (ms)."""

    kind: TimeKind
    name: bytes
    at: int


class ScheduleEntry(NamedTuple):
    """A schedule: its definition and its state as JSON, and when (ms) it fires next; None: not at all."""

    id: bytes
    definition: bytes
    state: bytes
    next_at: int | None


class JobEntry(NamedTuple):
    """Some counts of a bulk job, or of a run of it, by their fields, and when (ms) it may be forgotten."""

    counter: bytes
    forget_at: int
    counts: Mapping[bytes, bytes]


class TrailEntry(NamedTuple):
    """An entry of the audit trail: its id in the stream, and the event as JSON."""

    id: bytes
    event: bytes


Record = TaskEntry | FieldEntry | TimeEntry | ScheduleEntry | JobEntry | TrailEntry
