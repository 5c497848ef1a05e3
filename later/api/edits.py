"""The calls that change existing tasks: update, run-now, redrive and purge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from aiohttp import web
from msgspec import UNSET

from later.api.audit_records import record_action
from later.api.authorization import CALLER
from later.api.callback_check import CallbackCheck
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.move_requests import check_limit, move_answer, parse_cursor, parse_dead_range, parse_purge_ranges
from later.api.moves_by_ids import MovesByIds
from later.api.requests import (
    EXPECTED,
    IDS_BYTES,
    PurgeRequest,
    RedriveRequest,
    check_reason,
    check_redrive_request,
    check_run_now_request,
    parse_purge_request,
    parse_redrive_request,
    parse_run_now_request,
    parse_update_request,
    read_body,
)
from later.api.topics import parse_topic_scope
from later.core.audit_event import AuditAction
from later.core.clock import rfc3339
from later.core.durability import PRIMARY, Durability, parse_durability
from later.core.errors import Conflict, LaterError, NotFound, PolicyRefusal
from later.core.policy import MIN_RATE
from later.core.task_names import id_of
from later.core.task_view import task_view
from later.core.validation import parse_topic, refusal
from later.store.group_commit import NodeGroups
from later.store.open import Store
from later.store.types import BucketRange, MoveResult, TaskEdit, TaskRecord


class EditHandlers:
    """Handlers of changes."""

    def __init__(
        self,
        *,
        store: Store,
        callback_check: CallbackCheck,
        max_body: int,
        pending_writes: PendingWrites,
        signals: DueSignals,
        durable_writes: DurableWrites,
    ) -> None:
        self._store = store
        self._check_callback = callback_check.check
        timeout_s = store.client.timeout_s
        node_of = store.away_shards.node_of
        self._update = NodeGroups(store.edits.update, lambda edit: node_of(edit.id), queue_timeout_s=timeout_s)
        self._run_now = NodeGroups(self._with_store_time(store.edits.run_now), node_of, queue_timeout_s=timeout_s)
        self._redrive = NodeGroups(self._with_store_time(store.edits.redrive), node_of, queue_timeout_s=timeout_s)
        self._record_action = partial(record_action, store.audit_trail)
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._signals = signals
        self._durable_writes = durable_writes
        self._moves = MovesByIds(
            store=store, pending_writes=pending_writes, signals=signals, durable_writes=durable_writes
        )

    async def update(self, request: web.Request) -> web.StreamResponse:
        """`POST /update`."""
        changes = parse_update_request(await read_body(request, self._max_body))
        if changes.id is None:
            raise refusal("id", None)
        name = request[CALLER].task_name(changes.id)
        changes.require_any()
        if isinstance(changes.callback, str):
            self._check_callback(changes.callback)
        asked = parse_durability(changes.durability)
        with self._pending_writes.reserve():
            server_changes = await self._durable_writes.begin_change(asked)
            policies, now = await self._store.policies.current(), await self._store.time.now()
            edit, size = TaskEdit(name, changes, policies, now.high), len(changes.content or "")
            try:
                record = await self._update(edit, size)
            except PolicyRefusal:
                record = await self._update(edit._replace(policies=await self._store.policies.reread()), size)
        self._signals.task_changed(record)
        return await self._answer_changed(record, asked, server_changes)

    async def _answer_changed(self, record: TaskRecord, asked: Durability, server_changes: int) -> web.StreamResponse:
        """Answer a change of a task when that has reached its level. Raises NotDurable."""
        reached = await self._durable_writes.confirm_edit(asked, record.topic, server_changes, record.id)
        view = task_view(record)
        return json_response(view if reached is UNSET else msgspec.structs.replace(view, durability=reached))

    async def run_now(self, request: web.Request) -> web.StreamResponse:
        """`POST /run-now`."""
        body = parse_run_now_request(await read_body(request, max(self._max_body, IDS_BYTES)))
        check_run_now_request(body)
        if body.ids is not None:
            names = self._moves.admit(request, body.ids)
            return json_response(await self._moves.carry_out(names, self._store.edits.run_now, body.durability))
        name, asked = request[CALLER].task_name(body.id or ""), parse_durability(body.durability)
        try:
            with self._pending_writes.reserve():
                server_changes = await self._durable_writes.begin_change(asked)
                record = await self._run_now(name)
        except (NotFound, Conflict):
            await self._durable_writes.confirm_none(asked, server_changes, name)
            raise
        self._signals.task_changed(record)
        return await self._answer_changed(record, asked, server_changes)

    async def redrive(self, request: web.Request) -> web.StreamResponse:
        """`POST /redrive`."""
        body = parse_redrive_request(await read_body(request, max(self._max_body, IDS_BYTES)))
        check_redrive_request(body)
        if body.id is None and body.ids is None:
            return await self._redrive_topic(request, body)
        if body.ids is not None:
            names = self._moves.admit(request, body.ids)
            with self._record_action(request, AuditAction.DEAD_REDRIVEN) as details:
                return json_response(
                    await self._moves.carry_out(names, self._store.edits.redrive, body.durability, details)
                )
        name, asked = request[CALLER].task_name(body.id or ""), parse_durability(body.durability)
        server_changes = await self._durable_writes.begin_change(asked)
        try:
            with (
                self._record_action(request, AuditAction.DEAD_REDRIVEN, id=id_of(name)) as details,
                self._pending_writes.reserve(),
            ):
                record = await self._redrive(name)
                details["topic"] = record.topic
        except (NotFound, Conflict):
            await self._durable_writes.confirm_none(asked, server_changes, name)
            raise
        self._signals.task_changed(record)
        reached = await self._durable_writes.confirm_edit(asked, record.topic, server_changes, record.id)
        return json_response({"redriven": 1} if reached is UNSET else {"redriven": 1, "durability": reached})

    async def _redrive_topic(self, request: web.Request, body: RedriveRequest) -> web.StreamResponse:
        """Redrive the dead tasks of a topic."""
        topic, reason = request[CALLER].own_topic(parse_topic(body.topic)), check_reason(body.reason)
        cursor, limit = parse_cursor(body.cursor, request[CALLER]), check_limit(body.limit)
        dead = parse_dead_range(topic, body, cursor)
        if body.rate is not None and not body.rate >= MIN_RATE:
            raise refusal("rate", body.rate, EXPECTED["rate"])
        await self._store.policies.current()
        level, server_changes = await self._durable_writes.begin_in(body.durability, topic)
        now = (await self._store.time.now()).high
        died_before = min(now if cursor is None else cursor.died_before, now if dead.before is None else dead.before)
        dead = dead._replace(before=died_before)
        if body.dry_run:
            return await self._count("redriven", [dead], reason, limit)
        with self._record_action(
            request, AuditAction.DEAD_REDRIVEN, topic=topic, reason=reason, rate=body.rate
        ) as details:
            result = await self._store.dead_letters.redrive(
                dead,
                now=now,
                reason=reason,
                rate=body.rate,
                due_from=0 if cursor is None else cursor.next_due_at,
                limit=limit,
            )
            details["tasks"] = result.moved
        if result.moved:
            self._signals.tasks_moved(topic, now, result.moved)
        answer = move_answer("redriven", result, died_before)
        if level is not PRIMARY:
            await self._durable_writes.confirm(level, server_changes)
            answer["durability"] = level
        return json_response(answer)

    async def purge(self, request: web.Request) -> web.StreamResponse:
        """`POST /topics/{topic}/purge`."""
        topic = parse_topic_scope(request).name
        raw_body = await read_body(request, self._max_body)
        body = parse_purge_request(raw_body) if raw_body.strip() else PurgeRequest()
        ranges, limit = parse_purge_ranges(topic, body, request[CALLER]), check_limit(body.limit)
        reason = check_reason(body.reason)
        if body.dry_run:
            return await self._count("purged", ranges, reason, limit)
        states = [range_.bucket.value for range_ in ranges]
        with self._record_action(
            request, AuditAction.TOPIC_PURGED, topic=topic, states=states, reason=reason
        ) as details:
            if reason is None:
                result = await self._store.dead_letters.purge(ranges, limit)
            else:  # then the dead tasks are the only range
                result = await self._store.dead_letters.purge_dead(ranges[0], reason, limit)
            details["tasks"] = result.moved
        return json_response(move_answer("purged", result))

    async def _count(
        self, key: str, ranges: Sequence[BucketRange], reason: str | None, limit: int | None
    ) -> web.StreamResponse:
        """Answer how many tasks a purge or a redrive would move, how many there are in each state, and the time."""
        now = (await self._store.time.now()).high
        if reason is None and ranges[0].after is None:
            counts = await self._store.dead_letters.count(ranges)
            found = MoveResult(sum(counts), more=False)
        else:
            found = await self._store.dead_letters.count_dead(ranges[0], reason)
            counts = [found.moved]
        if limit is not None and found.moved > limit:
            found = MoveResult(limit, more=True)
        states = {range_.bucket.value: count for range_, count in zip(ranges, counts, strict=True)}
        answer = move_answer(key, found, ranges[0].before or 0)
        preview = {"dry_run": True, "topic": ranges[0].topic, **answer, "states": states, "at": rfc3339(now)}
        return json_response(preview)

    def _with_store_time(
        self, call: Callable[[Sequence[str], int], Awaitable[list[TaskRecord | LaterError]]]
    ) -> Callable[[Sequence[str]], Awaitable[list[TaskRecord | LaterError]]]:
        """Return a function that calls `call` with the ids and the store's time (ms, the high end)."""

        async def call_now(ids: Sequence[str]) -> list[TaskRecord | LaterError]:
            return await call(ids, (await self._store.time.now()).high)

        return call_now
