"""Schedules: recurring tasks. When a schedule fires, what it creates then, and what follows from missed times.

A schedule's definition is what its caller has put; its state says when it fires next, and how it fired last. Both are
values: each function here returns a new one, and the store replaces the one that was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, count, islice, takewhile
from zlib import crc32

import msgspec

from later.core.admit import admit, resolve_remember_ms
from later.core.api_keys import ALL_SCOPES
from later.core.caller import Caller
from later.core.cron import EXPECTED_CRON, EXPECTED_ZONE, CronTimes, cron_fields, find_zone, parse_cron
from later.core.errors import Refused, TooLarge
from later.core.json_body import body_parser
from later.core.policy_scopes import Policies, namespace_from_topic
from later.core.task import Draft, Task, new_id
from later.core.validation import (
    EXPECTED,
    EXPECTED_TIME,
    MAX_AHEAD_MS,
    format_value,
    parse_time,
    parse_topic,
    refusal,
    to_milliseconds,
)

MAX_SCHEDULE_BYTES = 131_072
"""Bytes of a schedule, in the body of its PUT and in the store."""
MAX_SCHEDULES = 100_000
"""Schedules in a store."""
MIN_EVERY_MS = 1000
"""Firings of one second would have the same id."""
MAX_FIRINGS = 1000
"""The most missed times that fire with `catch_up: all`: the earliest of them."""
LATE_MS = 60_000
"""How late a time may be and still fire with `catch_up: none`."""
FIRINGS_REMEMBERED_MS = 3_600_000
"""How long the id of a firing is remembered at least: as long as an instance may repeat it that was interrupted."""
TIMES_SHOWN = 10
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no later time can be shown."""


class CatchUp(StrEnum):
    """The values of a schedule's field `catch_up`: which of the times that were missed fire."""

    ONE = "one"
    ALL = "all"
    NONE = "none"


class ScheduleDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as a caller requests it: every field as it came, None if absent. Units are as in `Draft`."""

    cron: str | None = None
    every: float | None = None
    zone: str | None = None
    start: float | str | None = None
    end: float | str | None = None
    catch_up: str | None = None
    jitter: float | None = None
    paused: bool | None = None
    topic: str | None = None
    callback: str | None = None
    retry: int | None = None
    content: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    remember: float | None = None
    context: dict[str, str] | None = None


EXPECTED_SCHEDULE = {
    **EXPECTED,
    "cron": EXPECTED_CRON,
    "every": "a number of seconds ≥ 1, ten years at most",
    "zone": EXPECTED_ZONE,
    "start": EXPECTED_TIME,
    "end": EXPECTED_TIME,
    "catch_up": '"one", "all" or "none"',
    "jitter": "a number of seconds ≥ 0",
    "paused": "true or false",
}
"""The values that each field of a schedule takes, as a refusal states them."""

_parse_draft = body_parser(ScheduleDraft, EXPECTED_SCHEDULE)
_FIELDS_OF_TASKS = {
    "id": "the path has it",
    "delay": "cron or every says when",
    "execute_time": "cron or every says when",
    "if_exists": "each firing has an id of its own",
}
"""Fields of a create that a schedule does not have, and why."""


def parse_schedule_draft(body: bytes) -> ScheduleDraft:
    """Parse the body of a PUT of a schedule. Raises Refused with the name of the first wrong field."""
    try:
        return _parse_draft(body)
    except Refused as error:
        reason = _FIELDS_OF_TASKS.get(error.field or "")
        if reason is None:
            raise
        raise Refused(f"{error.field}: expected none, because {reason}", error.field) from None


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule's definition: when it fires, and the task that it creates. Times are in ms.

    Its fields from `callback` on are those of a task's draft: what the policies have to say about them, they say when
    it fires. `namespace` is that of the key that has put it; None: of an unbound one.
    """

    id: str
    topic: str
    namespace: str | None = None
    cron: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    start_at: int | None = None
    end_at: int | None = None
    catch_up: CatchUp = CatchUp.ONE
    jitter_ms: int = 0
    paused: bool = False
    """As its definition says; whether it is paused now, its state says."""
    callback: str | None = None
    retry: int | None = None
    content: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    remember: float | None = None
    context: dict[str, str] | None = None

    @property
    def topic_namespace(self) -> str:
        """The namespace of its topic, by which schedules are listed."""
        return namespace_from_topic(self.topic)


class FiringRecord(msgspec.Struct, frozen=True):
    """The last firing that created a task: its time (ms), and the task's id."""

    at: int
    task_id: str


class FiringRefusal(msgspec.Struct, frozen=True):
    """A firing that was refused, as a create would have been: its time (ms), why, and the wrong field if it is one."""

    at: int
    detail: str
    field: str | None = None


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a schedule: its next time, and its last firings. Times are in ms."""

    created_at: int
    anchor_at: int
    """No time before this one fires. From it `every` counts: the definition's `start`, or when it was created."""
    next_at: int | None
    """The first time that has not been dealt with, which may be past; None: it never fires again."""
    paused: bool = False
    last: FiringRecord | None = None
    last_error: FiringRefusal | None = None
    """The last refusal. It stays when later firings are not refused."""
    refused: int = 0
    """How many firings were refused."""


class StoredSchedule(msgspec.Struct, frozen=True):
    """A schedule: its definition and its state."""

    definition: Schedule
    state: ScheduleState


class FiringPlan(msgspec.Struct, frozen=True):
    """The times (ms) at which a schedule fires now, the earliest first, and its next time after them (None: never)."""

    times: list[int]
    next_at: int | None


# The definition


def build_schedule(draft: ScheduleDraft, id: str, caller: Caller) -> Schedule:
    """Return the definition that a caller requests under an id of `Caller.own_schedule`.

    Whether its tasks are accepted is not checked: see `firing_task`.

    Raises:
        Refused: a field about its times is wrong, or the topic. TooLarge: the whole is too large.
        NotAllowed: the topic is of another namespace than the caller's.
    """
    if (draft.cron is None) == (draft.every is None):
        got = "neither" if draft.cron is None else "both"
        raise Refused(f"cron: expected either cron or every, got {got}", "cron")
    start_at, end_at = _parse_moment("start", draft.start), _parse_moment("end", draft.end)
    if start_at is not None and end_at is not None and end_at < start_at:
        raise refusal("end", draft.end, "a time that is not before start")
    if draft.catch_up is not None and draft.catch_up not in list(CatchUp):
        raise refusal("catch_up", draft.catch_up, EXPECTED_SCHEDULE["catch_up"])
    zone = "UTC" if draft.zone is None else find_zone(draft.zone).key
    schedule = Schedule(
        id=id,
        topic=caller.own_topic(parse_topic(draft.topic)),
        namespace=caller.namespace,
        cron=None if draft.cron is None else _check_cron(draft.cron),
        every_ms=None if draft.every is None else _parse_period("every", draft.every, MIN_EVERY_MS),
        zone=zone,
        start_at=start_at,
        end_at=end_at,
        catch_up=CatchUp(draft.catch_up or CatchUp.ONE),
        jitter_ms=0 if draft.jitter is None else _parse_period("jitter", draft.jitter, 0),
        paused=draft.paused or False,
        callback=draft.callback,
        retry=draft.retry,
        content=draft.content,
        headers=draft.headers,
        ttl=draft.ttl,
        remember=draft.remember,
        context=draft.context,
    )
    if len(msgspec.json.encode(schedule)) > MAX_SCHEDULE_BYTES:
        raise TooLarge(f"expected a schedule of at most {MAX_SCHEDULE_BYTES} bytes")
    return schedule


def _check_cron(text: str) -> str:
    """Return a cron expression as its caller wrote it, which is how it is shown. Raises Refused."""
    parse_cron(text)
    return " ".join(text.split())


def _parse_moment(field: str, value: float | str | None) -> int | None:
    if value is None:
        return None
    at = parse_time(field, value)
    if not 0 <= at <= LATEST_MS:
        raise Refused(f"{field}: expected a time from 1970 to 9999, got {format_value(value)}", field)
    return at


def _parse_period(field: str, seconds: float, least_ms: int) -> int:
    if not math.isfinite(seconds) or not least_ms <= (ms := to_milliseconds(seconds)) <= MAX_AHEAD_MS:
        raise refusal(field, seconds, EXPECTED_SCHEDULE[field])
    return ms


# The times


class FiringTimes:
    """The times (ms) at which a schedule fires: those that its definition names, from `anchor_at` to its end."""

    def __init__(self, definition: Schedule, anchor_at: int) -> None:
        self._every_ms = definition.every_ms
        cron = definition.cron
        self._cron = None if cron is None else CronTimes(cron_fields(cron), find_zone(definition.zone))
        self._anchor_at = anchor_at
        self._end_at = LATEST_MS if definition.end_at is None else definition.end_at

    def all(self, since: int) -> Iterator[int]:
        """Yield the times from `since` on."""
        since = max(since, self._anchor_at)
        if since > self._end_at:
            return
        times: Iterator[int]
        if self._cron is not None:
            times = self._cron.all(since)
        else:
            assert self._every_ms is not None
            times = count(since + (self._anchor_at - since) % self._every_ms, self._every_ms)
        yield from takewhile(lambda at: at <= self._end_at, times)

    def first(self, since: int) -> int | None:
        """Return the first time that is not before `since`; None if there is none."""
        return next(self.all(since), None)

    def last(self, until: int) -> int | None:
        """Return the last time that is not after `until`; None if there is none."""
        until = min(until, self._end_at)
        if until < self._anchor_at:
            return None
        if self._cron is not None:
            at = self._cron.last(until)
        else:
            assert self._every_ms is not None
            at = until - (until - self._anchor_at) % self._every_ms
        return at if at is not None and at >= self._anchor_at else None

    def resolve(self, at: int) -> int | None:
        """Return `at` if it is one of the times; otherwise the time that it stands for now, or None if there is none.

        It is none any more if the rules of the zone have changed since it was found, and stands for the nearest one
        then. If that has passed already, it fires itself.
        """
        following = self.first(at)
        if following == at:
            return at
        previous = self.last(at)
        has_passed = previous is not None and (following is None or at - previous < following - at)
        return at if has_passed else following


def times_of(schedule: StoredSchedule) -> FiringTimes:
    """Return the times at which a schedule fires."""
    return FiringTimes(schedule.definition, schedule.state.anchor_at)


def next_times(schedule: StoredSchedule, after: int, count: int = TIMES_SHOWN) -> list[int]:
    """Return the first `count` times (ms) that are not past at `after`, as if the schedule were not paused.

    A time that is due, but has not been dealt with, is past.
    """
    if schedule.state.next_at is None:
        return []
    times = times_of(schedule).all(max(after, schedule.state.next_at))
    return list(islice(times, count))


def plan_firings(schedule: StoredSchedule, now: int) -> FiringPlan:
    """Return which of the times that have come by `now` (ms) fire, by the schedule's `catch_up`."""
    next_at = schedule.state.next_at
    if next_at is None or next_at > now:
        return FiringPlan([], next_at)
    times = times_of(schedule)
    first = times.resolve(next_at)
    if first is None or first > now:
        return FiringPlan([], first)
    following, since = times.first(now + 1), first
    match schedule.definition.catch_up:
        case CatchUp.ONE:
            return FiringPlan([max(first, times.last(now) or first)], following)
        case CatchUp.NONE:
            since = max(first, now - LATE_MS)
        case CatchUp.ALL:
            pass
    found = chain([first] if first == since else [], times.all(max(since, first + 1)))
    return FiringPlan(list(islice(takewhile(lambda at: at <= now, found), MAX_FIRINGS)), following)


# The tasks


def firing_id(schedule_id: str, at: int) -> str:
    """Return the id of the task that a schedule creates at a time (ms): `s:<schedule>:<Unix seconds>`.

    Of a bound key's schedule `team/x` it is `team/s:x:<Unix seconds>`.
    """
    prefix, slash, own = schedule_id.rpartition("/")
    return f"{prefix}{slash}s:{own}:{at // 1000}"


def extra_firing_id(schedule_id: str) -> str:
    """Return an id that no firing of a schedule at one of its times has: `s:<schedule>:now-<hex>`."""
    prefix, slash, own = schedule_id.rpartition("/")
    return f"{prefix}{slash}s:{own}:now-{new_id().replace('-', '')[:16]}"


def firing_task(definition: Schedule, at: int, policies: Policies, now: int) -> Task:
    """Return the task that a schedule creates for its time `at`, at `now` (ms): admitted like any other.

    Raises:
        Refused: a field is wrong, or the policy of its topic does not allow it (PolicyRefusal).
        NotAllowed: the topic is of another namespace than that of the key that has put the schedule.
    """
    id = firing_id(definition.id, at)
    draft = Draft(
        topic=definition.topic,
        callback=definition.callback,
        execute_time=(at + _jitter(id, definition.jitter_ms)) / 1000,
        retry=definition.retry,
        content=definition.content,
        headers=definition.headers,
        ttl=definition.ttl,
        context=definition.context,
    )
    caller = Caller(key_id=None, namespace=definition.namespace, scopes=ALL_SCOPES)
    task = admit(draft, policies, now, new_id(), caller)
    policy = policies.for_topic(task.topic)
    remember_ms = None if definition.remember is None else resolve_remember_ms(definition.remember, id)
    if (policy.remember_ms if remember_ms is None else remember_ms) < FIRINGS_REMEMBERED_MS:
        remember_ms = FIRINGS_REMEMBERED_MS
    return msgspec.structs.replace(task, id=id, own_id=True, remember_ms=remember_ms, scheduled_at=at)


def _jitter(id: str, jitter_ms: int) -> int:
    """Return by how many ms a firing's task is due after its time: the same on every instance."""
    return crc32(id.encode()) % (jitter_ms + 1)


# The state


def put_schedule(definition: Schedule, before: StoredSchedule | None, now: int) -> StoredSchedule:
    """Return the schedule with a definition that was put at `now` (ms) in place of `before`, if there was one.

    With the same times as before it keeps its next one; otherwise the next one is not before `now`. A pause lasts
    unless the definition has changed in that.
    """
    if before is None:
        anchor_at = now if definition.start_at is None else definition.start_at
        next_at = FiringTimes(definition, anchor_at).first(now)
        state = ScheduleState(created_at=now, anchor_at=anchor_at, next_at=next_at, paused=definition.paused)
        return StoredSchedule(definition, state)
    old, state = before.definition, before.state
    if _timing(definition) != _timing(old):
        anchor_at = state.created_at if definition.start_at is None else definition.start_at
        next_at = FiringTimes(definition, anchor_at).first(now)
        state = msgspec.structs.replace(state, anchor_at=anchor_at, next_at=next_at)
    if definition.paused is not old.paused:
        state = msgspec.structs.replace(state, paused=definition.paused)
    return StoredSchedule(definition, state)


def _timing(definition: Schedule) -> tuple[object, ...]:
    return definition.cron, definition.every_ms, definition.zone, definition.start_at, definition.end_at


def set_paused(schedule: StoredSchedule, paused: bool) -> StoredSchedule:
    """Return the schedule paused, or not paused. Its next time stays: what has passed since then was missed."""
    return StoredSchedule(schedule.definition, msgspec.structs.replace(schedule.state, paused=paused))


def move_on(
    state: ScheduleState, next_at: int | None, last: FiringRecord | None, refusals: list[FiringRefusal]
) -> ScheduleState:
    """Return the state after firings of which `last` was the last that created a task, and these were refused."""
    return msgspec.structs.replace(
        state,
        next_at=next_at,
        last=last or state.last,
        last_error=refusals[-1] if refusals else state.last_error,
        refused=state.refused + len(refusals),
    )
