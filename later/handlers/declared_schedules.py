"""Schedules that are declared at handlers. Nothing puts them by itself: the application's `apply_schedules` does."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from later.client.answers import AppliedPolicy, ScheduleInfo
from later.client.call_fields import format_time
from later.client.schedule_calls import CatchUpValue
from later.core.durations import Seconds, to_seconds
from later.core.policy import PULL

NO_PAYLOAD: Any = object()
"""The payload of a schedule that is declared without one."""
MIN_EVERY_S = 1.0

_ID = re.compile(r"[A-Za-z0-9._~:-]{1,100}")
_DEFAULTS: dict[str, Any] = {
    "content": "", "cron": None, "every": None, "zone": "UTC", "end": None, "catch_up": "one", "jitter": 0,
    "callback": None, "retry": None, "ttl": None, "remember": None, "headers": [], "context": [],
}  # fmt: skip
"""The fields of a schedule that does not say them; its `start` is then the time at which it was created."""


class DeclaredSchedule(NamedTuple):
    """A schedule of a handler: when it is to fire, and with which payload. Durations are in seconds."""

    id: str
    payload: Any
    cron: str | None
    every: float | None
    zone: str | None
    start: datetime | None
    end: datetime | None
    catch_up: CatchUpValue | None
    jitter: float | None

    def fields(self, topic: str, content: str, callback: str | None) -> dict[str, Any]:
        """Return the arguments of a client's `put_schedule` besides the id."""
        fields = {
            "topic": topic,
            "content": content,
            "cron": self.cron,
            "every": self.every,
            "zone": self.zone,
            "start": self.start,
            "end": self.end,
            "catch_up": self.catch_up,
            "jitter": self.jitter,
            "callback": callback,
        }
        return {name: value for name, value in fields.items() if value is not None}


class ScheduleChange(NamedTuple):
    """A field of a schedule that differs from what its handler declares. None: it is not set, or there is none yet."""

    id: str
    field: str
    before: object
    after: object


def declare_schedule(
    topic: str,
    *,
    id: str | None,
    payload: Any,
    cron: str | None = None,
    every: Seconds | None = None,
    zone: str | None = None,
    start: datetime | None,
    end: datetime | None,
    catch_up: CatchUpValue | None,
    jitter: Seconds | None,
) -> DeclaredSchedule:
    """Return a schedule of the handler of a topic. Its id is the topic, with `:` for `/`, unless it is given.

    Raises:
        Refused: a duration is none, or a time has no zone.
        ValueError: the id is none, or `every` is less than a second.
    """
    own_id = topic.replace("/", ":") if id is None else id
    if _ID.fullmatch(own_id) is None:
        raise ValueError(f"{topic}: id: expected 1 to 100 characters of A-Za-z0-9._~:-, got {own_id!r}")
    every_s = None if every is None else to_seconds("every", every)
    if every_s is not None and every_s < MIN_EVERY_S:
        raise ValueError(f"{topic}: every: expected 1 s or more, got {every_s:g}")
    for field, time in (("start", start), ("end", end)):
        format_time(field, time)
    return DeclaredSchedule(
        id=own_id,
        payload=payload,
        cron=None if cron is None else " ".join(cron.split()),  # as it is shown, or it would always differ
        every=every_s,
        zone=zone,
        start=start,
        end=end,
        catch_up=catch_up,
        jitter=None if jitter is None else to_seconds("jitter", jitter),
    )


def schedule_changes(
    id: str, fields: Mapping[str, Any], found: ScheduleInfo | None, applied: AppliedPolicy
) -> list[ScheduleChange]:
    """Return the fields in which a schedule differs from the arguments that are to be put.

    A `start` that is not among them, and whether the schedule is paused, stay as they are. `applied` is the policy of
    its topic: if consumers claim its tasks, the schedule has no callback.
    """
    wanted = {**_DEFAULTS, **fields}
    if applied.values.get("deliver") == PULL:
        wanted["callback"] = None
    befores = {name: None if found is None else getattr(found, name) for name in wanted}
    defaults = _DEFAULTS if found is None else {}
    return [
        ScheduleChange(id, name, befores[name], value)
        for name, value in wanted.items()
        if befores[name] != value and (name not in defaults or defaults[name] != value)
    ]


def is_undeclared(found: ScheduleInfo, declared: Collection[str], topics: Collection[str]) -> bool:
    """Return True if a schedule is of one of these topics, and its id is not among those that are declared."""
    return found.topic in topics and found.id.rpartition("/")[2] not in declared
