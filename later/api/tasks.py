"""The calls for one task: create, query and delete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from msgspec import UNSET

from later.api.authorization import CALLER
from later.api.callback_check import CallbackCheck
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.requests import parse_delete_request, parse_id, read_body
from later.api.response_schemas import CreateResponse, created_warning, deletion_view, due_time
from later.api.task_creation import carry_out_counted, create_tasks
from later.api.trace_headers import context_of, context_to_keep
from later.core.admit import admit
from later.core.caller import Caller
from later.core.durability import PRIMARY
from later.core.errors import Conflict, NotFound, PolicyRefusal, Refused
from later.core.if_exists import Creation, creation_of, task_of
from later.core.json_body import parse_draft
from later.core.task import Draft, Task, new_id
from later.core.task_view import task_view
from later.metrics import Metrics
from later.store.group_commit import NodeGroups
from later.store.open import Store
from later.store.types import CreateResult, UpdatedTask

if TYPE_CHECKING:
    from later.tracing.spans import CreateSpan, SpanRecorder


class TaskHandlers:
    """Handlers of calls for one task."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        callback_check: CallbackCheck,
        max_body: int,
        pending_writes: PendingWrites,
        signals: DueSignals,
        durable_writes: DurableWrites,
        keeps_trace_context: bool,
        span_recorder: SpanRecorder | None,
    ) -> None:
        self._store = store
        timeout_s = store.client.timeout_s
        create = partial(create_tasks, store, metrics, signals)
        node_of = store.away_shards.node_of
        self._create: NodeGroups[Task, CreateResult] = NodeGroups(
            create, lambda task: node_of(task.id), queue_timeout_s=timeout_s
        )
        carry_out = partial(carry_out_counted, store, metrics, signals)
        self._carry_out: NodeGroups[Creation, CreateResult] = NodeGroups(
            carry_out, lambda creation: node_of(task_of(creation).id), queue_timeout_s=timeout_s
        )
        self._query = NodeGroups(store.lookup.query, node_of, queue_timeout_s=timeout_s)
        self._delete = NodeGroups(store.edits.delete, node_of, queue_timeout_s=timeout_s)
        self._durable_writes = durable_writes
        self._metrics = metrics
        self._check_callback = callback_check.check
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._keeps_trace_context = keeps_trace_context
        self._span_recorder = span_recorder

    async def create(self, request: web.Request) -> web.StreamResponse:
        """`POST /create`."""
        if self._span_recorder is None:
            return await self._create_one(request, None)
        span = self._span_recorder.begin_create(context_of(request), is_kept=self._keeps_trace_context)
        try:
            return await self._create_one(request, span)
        finally:
            span.end()

    async def _create_one(self, request: web.Request, span: CreateSpan | None) -> web.StreamResponse:
        """Create the task of a request, within the span if there is one."""
        try:
            draft = parse_draft(await read_body(request, self._max_body))
            trace = context_to_keep(request) if self._keeps_trace_context else b""
            with self._pending_writes.reserve():
                task = await self._admit(draft, request[CALLER], trace)
                self._check_callback(task.callback)
                level, changes = await self._durable_writes.begin_in(draft.durability, task.topic)
                if span is not None:
                    task = span.join(task)
                result = await self._store_task(draft, task)
        except Refused:
            self._metrics.tasks_refused.inc()
            raise
        except Conflict:  # with what an earlier attempt may have made
            await self._durable_writes.confirm(level, changes, task.id, stored=False)
            raise
        if span is not None:
            span.note_stored()
        if level is not PRIMARY:
            await self._durable_writes.confirm(level, changes, task.id)
        created = result is True
        return json_response(
            CreateResponse(
                id=task.id,
                due_at=due_time(task, result),
                created=UNSET if draft.id is None else created,
                updated=isinstance(result, UpdatedTask) or UNSET,
                warning=created_warning(task, created),
                durability=UNSET if level is PRIMARY else level,
            )
        )

    async def _store_task(self, draft: Draft, task: Task) -> CreateResult:
        """Create a task, or do what its draft says if there is one with its id."""
        if draft.if_exists is None:
            return await self._create(task, len(task.content))
        creation = creation_of(draft, task, self._store.policies.latest)
        return await self._carry_out(creation, len(task.content))

    async def _admit(self, draft: Draft, caller: Caller, trace: bytes) -> Task:
        """Return the task that a draft requests; what a policy refuses is judged again by one read anew."""
        policies, now = await self._store.policies.current(), await self._store.time.now()

        def admit_once() -> Task:
            return admit(draft, policies, now.high, new_id(), caller, trace_context=trace)

        try:
            return self._store.away_shards.draw(admit_once)
        except PolicyRefusal:
            policies = await self._store.policies.reread()
            return self._store.away_shards.draw(admit_once)

    async def query(self, request: web.Request) -> web.StreamResponse:
        """`POST /query`."""
        id = parse_id(await read_body(request, self._max_body), request[CALLER])
        with self._pending_writes.reserve():
            record = await self._query(id)
        return json_response(task_view(record))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`POST /delete`."""
        name, asked = parse_delete_request(await read_body(request, self._max_body), request[CALLER])
        try:
            with self._pending_writes.reserve():
                changes = await self._durable_writes.begin_change(asked)
                deletion = await self._delete(name)
        except NotFound:
            await self._durable_writes.confirm_none(asked, changes, name)
            raise
        reached = await self._durable_writes.confirm_edit(asked, deletion.topic, changes, name)
        return json_response(deletion_view(deletion, reached))
