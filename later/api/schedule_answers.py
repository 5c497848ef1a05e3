"""Schemas of answers about schedules, and the functions that fill them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from later.core.clock import rfc3339
from later.core.policy import plain_number
from later.core.schedule import FiringRecord, FiringRefusal, StoredSchedule, next_times

Value = TypeVar("Value")


class ScheduleResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a put: whether the schedule is new, and the next times at which it fires."""

    id: str
    created: bool
    next: list[str]


class LastFiringView(msgspec.Struct, frozen=True, kw_only=True):
    """The last firing of a schedule that has created a task."""

    time: str
    task_id: str


class FiringErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The last firing of a schedule whose task was refused. `field` is the field that is wrong, if one is."""

    time: str
    message: str
    field: str | UnsetType = UNSET


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as callers see it. Of headers and context only the names are shown."""

    id: str
    topic: str
    cron: str | UnsetType = UNSET
    every: float | UnsetType = UNSET
    zone: str
    start: str
    end: str | UnsetType = UNSET
    catch_up: str
    jitter: float
    paused: bool
    callback: str | None
    content: str
    retry: int | UnsetType = UNSET
    ttl: float | UnsetType = UNSET
    remember: float | UnsetType = UNSET
    headers: list[str] | UnsetType = UNSET
    context: list[str] | UnsetType = UNSET
    created_at: str
    next: list[str]
    last: LastFiringView | None
    last_error: FiringErrorView | None
    refused: int


class SchedulesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A page of schedules. `cursor` is None on the last page."""

    schedules: list[ScheduleView]
    cursor: str | None


def schedule_view(schedule: StoredSchedule, now: int, times: int) -> ScheduleView:
    """Return the view of a schedule at `now` (ms), with so many of its next times."""
    definition, state = schedule.definition, schedule.state
    return ScheduleView(
        id=definition.id,
        topic=definition.topic,
        cron=_given(definition.cron),
        every=UNSET if definition.every_ms is None else plain_number(definition.every_ms / 1000),
        zone=definition.zone,
        start=rfc3339(state.anchor_at),
        end=UNSET if definition.end_at is None else rfc3339(definition.end_at),
        catch_up=definition.catch_up.value,
        jitter=plain_number(definition.jitter_ms / 1000),
        paused=state.paused,
        callback=definition.callback,
        content=definition.content or "",
        retry=_given(definition.retry),
        ttl=_given(definition.ttl),
        remember=_given(definition.remember),
        headers=list(definition.headers) if definition.headers else UNSET,
        context=list(definition.context) if definition.context else UNSET,
        created_at=rfc3339(state.created_at),
        next=format_times(_next(schedule, now, times)),
        last=None if state.last is None else _last_view(state.last),
        last_error=None if state.last_error is None else _error_view(state.last_error),
        refused=state.refused,
    )


def format_times(times: Sequence[int]) -> list[str]:
    return [rfc3339(time) for time in times]


def _next(schedule: StoredSchedule, now: int, count: int) -> list[int]:
    """Return the next times. A page has a thousand schedules, so one that is known is not calculated again."""
    next_at = schedule.state.next_at
    is_known = count == 1 and next_at is not None and next_at >= now
    return [next_at] if is_known and next_at is not None else next_times(schedule, now, count)


def _last_view(last: FiringRecord) -> LastFiringView:
    return LastFiringView(time=rfc3339(last.at), task_id=last.task_id)


def _error_view(error: FiringRefusal) -> FiringErrorView:
    return FiringErrorView(time=rfc3339(error.at), message=error.detail, field=_given(error.field))


def _given(value: Value | None) -> Value | UnsetType:
    return UNSET if value is None else value
