"""The three calls: create, query and delete a task."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from later.api.load_shedding import PendingWrites
from later.api.schemas import DeleteResponse, create_response, json_response, parse_id, read_body, task_view
from later.core.admit import admit
from later.core.drafts import parse_draft
from later.core.errors import Refused
from later.core.task import Draft, Task, new_id
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.open import Store


class TaskHandlers:
    """Handlers for one task at a time. `on_create` is told when a ticker must take up a task that was created."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        max_body: int,
        pending_writes: PendingWrites,
        on_create: Callable[[int], None],
    ) -> None:
        self._store = store
        self._create = GroupCommit(
            store.tasks.create, queue_timeout_s=store.client.timeout_s, size_of=lambda task: len(task.content)
        )
        self._query = GroupCommit(store.lookup.query, queue_timeout_s=store.client.timeout_s)
        self._delete = GroupCommit(store.edits.delete, queue_timeout_s=store.client.timeout_s)
        self._metrics = metrics
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._on_create = on_create

    async def create(self, request: web.Request) -> web.StreamResponse:
        """`POST /create`."""
        draft = await self._drafted(request)
        with self._pending_writes.reserve():
            task = await self._admitted(draft)
            created = await self._create(task)
        self._note(task, created)
        return json_response(create_response(task, created))

    async def query(self, request: web.Request) -> web.StreamResponse:
        """`POST /query`."""
        id = parse_id(await read_body(request, self._max_body))
        with self._pending_writes.reserve():
            found = await self._query(id)
        return json_response(task_view(found))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`POST /delete`."""
        id = parse_id(await read_body(request, self._max_body))
        with self._pending_writes.reserve():
            deleted = await self._delete(id)
        return json_response(DeleteResponse(deleted))

    async def _drafted(self, request: web.Request) -> Draft:
        try:
            return parse_draft(await read_body(request, self._max_body))
        except Refused:
            self._metrics.tasks_refused.inc()
            raise

    async def _admitted(self, draft: Draft) -> Task:
        policies, now = await self._store.policies.current(), await self._store.now()
        try:
            return admit(draft, policies, now.high, new_id())
        except Refused:
            self._metrics.tasks_refused.inc()
            raise

    def _note(self, task: Task, created: bool) -> None:
        if created:
            self._metrics.tasks_created.inc()
            self._on_create(task.execute_at)
        else:
            self._metrics.tasks_duplicate.inc()
