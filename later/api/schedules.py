"""The calls of schedules, which create tasks again and again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import msgspec
from aiohttp import web

from later.api.audit_records import record_action
from later.api.authorization import CALLER
from later.api.callback_check import CallbackCheck
from later.api.due_signals import DueSignals
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.paging import decode_cursor, encode_cursor, parse_page_size
from later.api.requests import EXPECTED, check_no_fields, path_parameter, read_body
from later.api.schedule_answers import (
    ScheduleResponse,
    SchedulesResponse,
    ScheduleView,
    format_times,
    schedule_view,
)
from later.api.task_answers import BytesInAnswers, send
from later.api.task_creation import create_tasks
from later.core.audit_event import AuditAction
from later.core.caller import Caller
from later.core.errors import LaterError, PolicyRefusal
from later.core.schedule import (
    MAX_SCHEDULE_BYTES,
    TIMES_SHOWN,
    FiringRecord,
    Schedule,
    build_schedule,
    extra_firing_id,
    firing_task,
    next_times,
    parse_schedule_draft,
)
from later.core.task import Task
from later.core.validation import check_namespace, refusal
from later.metrics import Metrics
from later.store.open import Store
from later.store.schedules import SchedulePosition

VIEWS_PER_TURN = 100
"""Schedules of a page after which other requests get a turn."""


class ScheduleHandlers:
    """Handlers of schedules."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        callback_check: CallbackCheck,
        max_body: int,
        pending_writes: PendingWrites,
        bytes_in_answers: BytesInAnswers,
        signals: DueSignals,
    ) -> None:
        self._store = store
        self._schedules = store.schedules
        self._create = partial(create_tasks, store, metrics, signals)
        self._check_callback = callback_check.check
        self._record_action = partial(record_action, store.audit_trail)
        self._max_body = min(max_body, MAX_SCHEDULE_BYTES)
        self._pending_writes = pending_writes
        self._bytes_in_answers = bytes_in_answers

    async def put(self, request: web.Request) -> web.StreamResponse:
        """`PUT /schedules/{id}`."""
        caller = request[CALLER]
        id = caller.own_schedule(path_parameter(request, "id"))
        definition = build_schedule(parse_schedule_draft(await read_body(request, self._max_body)), id, caller)
        topic = definition.topic
        with (
            self._record_action(request, AuditAction.SCHEDULE_PUT, schedule=id, topic=topic) as details,
            self._pending_writes.reserve(),
        ):
            now = (await self._store.time.now()).high
            self._check_callback((await self._task(definition, now)).callback)
            put = await self._schedules.put(definition, now)
            details["created"], details["changed"] = put.created, put.changed
        times = format_times(next_times(put.schedule, now, TIMES_SHOWN))
        return json_response(ScheduleResponse(id=id, created=put.created, next=times))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /schedules/{id}`."""
        with self._pending_writes.reserve():
            schedule = await self._schedules.get(_schedule_name(request))
            now = (await self._store.time.now()).high
        return json_response(schedule_view(schedule, now, TIMES_SHOWN))

    async def list_schedules(self, request: web.Request) -> web.StreamResponse:
        """`GET /schedules`: each with the first of its next times alone."""
        query, caller = request.query, request[CALLER]
        limit = parse_page_size(query.get("limit"))
        namespace = caller.own_namespace(check_namespace(query["namespace"])) if "namespace" in query else None
        after = _parse_cursor(query["cursor"], caller) if "cursor" in query else None
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve():
                page = await self._schedules.page(limit, after, namespace or caller.namespace, answer.has_room_after)
                now = (await self._store.time.now()).high
            cursor = None if page.read_to is None else encode_cursor("\0".join(page.read_to))
            schedules: list[ScheduleView] = []
            for number, schedule in enumerate(page.schedules, 1):
                if number % VIEWS_PER_TURN == 0:
                    await asyncio.sleep(0)
                schedules.append(schedule_view(schedule, now, 1))
            return await send(request, json_response(SchedulesResponse(schedules=schedules, cursor=cursor)))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /schedules/{id}`."""
        id = _schedule_name(request)
        with self._record_action(request, AuditAction.SCHEDULE_DELETED, schedule=id) as details:
            with self._pending_writes.reserve():
                deleted = await self._schedules.delete(id)
            details["topic"] = deleted.definition.topic
        return json_response({"id": id})

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """`POST /schedules/{id}/pause`: times that pass until it is resumed count as missed."""
        return await self._set_paused(request, AuditAction.SCHEDULE_PAUSED, paused=True)

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """`POST /schedules/{id}/resume`."""
        return await self._set_paused(request, AuditAction.SCHEDULE_RESUMED, paused=False)

    async def run_now(self, request: web.Request) -> web.StreamResponse:
        """`POST /schedules/{id}/run-now`: a task beside those of the schedule's times."""
        check_no_fields(await read_body(request, self._max_body))
        id = _schedule_name(request)
        with self._pending_writes.reserve():
            definition = (await self._schedules.get(id)).definition
            now = (await self._store.time.now()).high
            firing = await self._task(definition, now)
            task = self._store.away_shards.draw(lambda: msgspec.structs.replace(firing, id=extra_firing_id(id)))
            self._check_callback(task.callback)
            [result] = await self._create([task])
            if isinstance(result, LaterError):
                raise result
            with suppress(LaterError):  # the task is there, whether the schedule knows it or not
                await self._schedules.record_run(id, FiringRecord(now, task.id))
        return json_response({"id": task.id})

    async def _set_paused(self, request: web.Request, action: AuditAction, *, paused: bool) -> web.StreamResponse:
        check_no_fields(await read_body(request, self._max_body))
        id = _schedule_name(request)
        with self._record_action(request, action, schedule=id) as details:
            with self._pending_writes.reserve():
                schedule = await self._schedules.set_paused(id, paused)
            details["topic"] = schedule.definition.topic
        return json_response({"id": id, "paused": schedule.state.paused})

    async def _task(self, definition: Schedule, now: int) -> Task:
        """Return the task of a firing at `now` (ms), without jitter.

        Raises:
            Refused: a create of it would be refused, also by policies that were just read.
        """
        definition = msgspec.structs.replace(definition, jitter_ms=0)
        try:
            return firing_task(definition, now, await self._store.policies.current(), now)
        except PolicyRefusal:
            return firing_task(definition, now, await self._store.policies.reread(), now)


def _schedule_name(request: web.Request) -> str:
    """Return the id of the schedule that the path names. Raises Refused."""
    return request[CALLER].schedule_name(path_parameter(request, "id"))


def _parse_cursor(cursor: str, caller: Caller) -> SchedulePosition:
    """Return the schedule after which the next page begins.

    Raises:
        Refused: no answer to this caller had this cursor.
    """
    namespace, separator, id = decode_cursor(cursor).partition("\0")
    if not separator or caller.namespace not in (None, namespace):
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return SchedulePosition(namespace, id)
