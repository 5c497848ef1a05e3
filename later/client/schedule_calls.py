"""The calls of schedules, each made of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from later.client.answers import ScheduleInfo, ScheduleResult
from later.client.call import Call, given
from later.client.call_fields import PAGE_SIZE, Page, decoder, format_time, plain_seconds, quote_name
from later.core.durations import Seconds

CatchUpValue = Literal["one", "all", "none"]


def put_schedule(
    id: str,
    topic: str,
    content: str,
    *,
    cron: str | None,
    every: Seconds | None,
    zone: str | None,
    start: datetime | None,
    end: datetime | None,
    catch_up: CatchUpValue | None,
    jitter: Seconds | None,
    paused: bool | None,
    callback: str | None,
    retry: int | None,
    ttl: Seconds | None,
    headers: Mapping[str, str] | None,
    context: Mapping[str, str] | None,
    remember: Seconds | None,
) -> Call[ScheduleResult]:
    """The call that puts a schedule. Raises Refused: a duration is none, or a time has no zone."""
    fields = given(
        topic=topic,
        content=content or None,
        cron=cron,
        every=plain_seconds("every", every),
        zone=zone,
        start=format_time("start", start),
        end=format_time("end", end),
        catch_up=catch_up,
        jitter=plain_seconds("jitter", jitter),
        paused=paused,
        callback=callback,
        retry=retry,
        ttl=plain_seconds("ttl", ttl),
        headers=None if headers is None else dict(headers),
        context=None if context is None else dict(context),
        remember=plain_seconds("remember", remember),
    )
    return put_fields(id, fields)


def put_fields(id: str, fields: Mapping[str, Any]) -> Call[ScheduleResult]:
    """The call that puts a schedule of these fields."""
    return Call(_path(id), _read_result, fields, method="PUT", safe=True)


_read_result = decoder(ScheduleResult)


def schedule(id: str) -> Call[ScheduleInfo]:
    return Call(_path(id), _read_schedule, method="GET", safe=True)


_read_schedule = decoder(ScheduleInfo)


class _SchedulesPage(msgspec.Struct):
    schedules: list[ScheduleInfo]
    cursor: str | None


_read_page = decoder(_SchedulesPage)


def schedules(namespace: str | None, cursor: str | None = None) -> Call[Page[ScheduleInfo]]:
    def read(body: bytes) -> Page[ScheduleInfo]:
        page = _read_page(body)
        return Page(page.schedules, None if page.cursor is None else schedules(namespace, page.cursor))

    query = urlencode(given(limit=PAGE_SIZE, namespace=namespace, cursor=cursor))
    return Call(f"/schedules?{query}", read, method="GET", safe=True)


class _ScheduleId(msgspec.Struct):
    id: str


_decode_id = decoder(_ScheduleId)


def _read_id(body: bytes) -> str:
    return _decode_id(body).id


def delete_schedule(id: str) -> Call[str]:
    return Call(_path(id), _read_id, method="DELETE", safe=True)


class _SchedulePaused(msgspec.Struct):
    paused: bool


_decode_paused = decoder(_SchedulePaused)


def _read_paused(body: bytes) -> bool:
    return _decode_paused(body).paused


def pause_schedule(id: str) -> Call[bool]:
    return Call(f"{_path(id)}/pause", _read_paused, {}, safe=True)


def resume_schedule(id: str) -> Call[bool]:
    return Call(f"{_path(id)}/resume", _read_paused, {}, safe=True)


def run_schedule_now(id: str) -> Call[str]:
    """The call that fires a schedule now. Its answer is the id of the task."""
    return Call(f"{_path(id)}/run-now", _read_id, {})


def _path(id: str) -> str:
    return f"/schedules/{quote_name(id)}"
