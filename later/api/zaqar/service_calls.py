"""Zaqar's calls about the service as a whole: its home document, ping and health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

import msgspec
from aiohttp import web

from later.api.json_response import DATA_HEADERS
from later.api.load_shedding import PendingWrites
from later.api.zaqar.error_answers import unavailable
from later.api.zaqar.home_document import home_document
from later.api.zaqar.protocol import ZaqarCall, document_response, no_content
from later.core.errors import LaterError, StoreFull
from later.store.open import Store
from later.store.stats import SLICE

HOME_DOCUMENT = msgspec.json.format(msgspec.json.encode(home_document()), indent=4)
HOME_HEADERS = {**DATA_HEADERS, "Cache-Control": "max-age=86400", "Content-Type": "application/json-home"}
NOT_READY = "The server is not ready."


class ServiceHandlers:
    """Handlers of calls about the service. `why_not_ready` returns what keeps the daemon from its work, or None."""

    def __init__(
        self, *, store: Store, pending_writes: PendingWrites, why_not_ready: Callable[[], Awaitable[LaterError | None]]
    ) -> None:
        self._store = store
        self._pending_writes = pending_writes
        self._why_not_ready = why_not_ready
        self._counts: dict[str, asyncio.Task[dict[str, int]]] = {}
        """The counts of projects' messages that are being made."""

    async def home(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/`."""
        return web.Response(body=HOME_DOCUMENT, headers=HOME_HEADERS)

    async def ping(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/ping`. Raises ZaqarError: the daemon is not ready; `/readyz` says why, to those who may know."""
        if await self._why_not_ready() is not None:
            raise unavailable(NOT_READY)
        return no_content()

    async def health(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/health`: the messages of the caller's project, and whether the store takes writes.

        Raises:
            StoreDown: the store does not answer.
        """
        with self._pending_writes.reserve():
            started = perf_counter()
            is_full = False
            try:
                await self._store.stats.ping()
            except StoreFull:
                is_full = True
            seconds = perf_counter() - started
            volume = await self._share_count(call.project)
        return document_response(
            {
                "storage_reachable": True,
                "message_volume": volume,
                "operation_status": {"write": {"succeeded": not is_full, "seconds": seconds, "ref": None}},
            }
        )

    async def _share_count(self, project: str) -> dict[str, int]:
        """Return what `_count_messages` does, which reads every queue: calls that come meanwhile share the count."""
        count = self._counts.get(project)
        if count is None:
            count = self._counts[project] = asyncio.create_task(self._count_messages(project))
            count.add_done_callback(lambda _: self._counts.pop(project))
        return await asyncio.shield(count)

    async def _count_messages(self, project: str) -> dict[str, int]:
        """Return how many messages the queues of a project hold."""
        claimed = total = 0
        declared = (await self._store.policies.current()).topics_between
        now = (await self._store.time.now()).low
        after = ""
        while True:
            with self._store.client.away_tags.needing_all():
                counts = await self._store.topic_index.page(declared, now, limit=SLICE, after=after, namespace=project)
            for topic in counts.values():
                claimed += topic.unack
                total += topic.delay + topic.unack + topic.error
            if len(counts) < SLICE:
                return {"free": total - claimed, "claimed": claimed, "total": total}
            after = [*counts][-1]
