"""`POST /explain`: why something has not run yet."""

from __future__ import annotations

import msgspec
from aiohttp import web

from later.api.load_shedding import PendingWrites
from later.api.schemas import body_parser, json_response, last_error_view, read_body
from later.core.errors import LaterError, Refused
from later.core.explain import HEARTBEAT_TIMEOUT_MS, Explanation, TaskFacts, TopicFacts, explain_task, explain_topic
from later.core.task import Task
from later.core.validation import check_id, parse_topic
from later.store.open import Store
from later.store.types import TaskRecord


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked about."""

    id: str | None = None
    topic: str | None = None


class ExplainHandlers:
    """The handler. `lease_ms` is that of workers, for the daemon's own timeout."""

    def __init__(
        self,
        *,
        store: Store,
        max_body: int,
        pending_writes: PendingWrites,
        lease_ms: int,
    ) -> None:
        self._store = store
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._lease_ms = lease_ms

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """`POST /explain`."""
        asked = _asked(await read_body(request, self._max_body))
        with self._pending_writes.reserve():
            if asked.topic is not None:
                return _answer(await self._explain_topic(asked.topic), {})
            [found] = await self._store.lookup.query([asked.id or ""])
            if isinstance(found, LaterError):
                raise found
            return _answer(await self._explain_task(found), {"last_error": last_error_view(found.failure)})

    async def _explain_topic(self, name: str) -> Explanation:
        now = (await self._store.now()).low
        return explain_topic(await self._facts(name, now), now)

    async def _explain_task(self, found: TaskRecord) -> Explanation:
        now = (await self._store.now()).low
        facts = await self._facts(found.topic, now)
        lease_ms = self._lease_ms + facts.policy.timeout_ms - self._store.policies.latest.daemon.timeout_ms
        task = found.task if isinstance(found.task, Task) else None
        score, state = found.score, found.state.value
        told = TaskFacts(found.id, state, score, found.attempts, found.failure, task, lease_ms)
        return explain_task(told, facts, now)

    async def _facts(self, name: str, now: int) -> TopicFacts:
        policies = await self._store.policies.read()
        counts = (await self._store.stats.counts_for([name], now))[name]
        standing = await self._store.stats.topic_state(name)
        beats = [*(await self._store.stats.workers()).values()]
        return TopicFacts(
            name,
            policies.for_topic(name),
            *counts,
            next_due_at=standing.next_due_at,
            paused=standing.paused,
            held_until=standing.held_until,
            full_speed_at=self._store.policies.ramps.get(name),
            workers=sum(now - at < HEARTBEAT_TIMEOUT_MS for at in beats),
            last_heartbeat_at=max(beats, default=None),
        )


_read = body_parser(ExplainRequest)


def _asked(body: bytes) -> ExplainRequest:
    asked = _read(body)
    if (asked.id is None) == (asked.topic is None):
        got = "neither" if asked.id is None else "both"
        raise Refused(f"id: expected either an id or a topic, got {got}", "id")
    if asked.id is not None:
        return ExplainRequest(id=check_id(asked.id))
    return ExplainRequest(topic=parse_topic(asked.topic))


def _answer(explanation: Explanation, more: dict[str, object]) -> web.StreamResponse:
    return json_response({"sentence": explanation.sentence, **explanation.details, **more})
