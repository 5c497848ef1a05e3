"""`POST /explain`: why a task, or the tasks of a topic, have not run yet."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, suppress

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.requests import parse_explain_request, read_body
from later.api.topic_rows import PartialAnswer
from later.core.errors import LaterError, NodeDown, Refused
from later.core.explain import TaskFacts, TopicFacts, explain_task, explain_topic
from later.core.held import Held
from later.core.origin import Origin
from later.core.policy import Policy
from later.core.policy_scopes import Level, topic_scope
from later.core.task import Task
from later.core.task_view import failure_views, last_error_view
from later.core.validation import parse_topic
from later.store.keys import Bucket
from later.store.open import Store
from later.store.stats import HEARTBEAT_TIMEOUT_MS
from later.store.types import BucketRange, TaskRecord

SAMPLE = 100
"""Tasks of a topic that are read to say for which origins its tasks wait."""


class ExplainHandlers:
    """The handler of `/explain`. `lease_ms` is the length of a lease if the daemon's timeout applies to the topic."""

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
        body = parse_explain_request(await read_body(request, self._max_body))
        if (body.id is None) == (body.topic is None):
            got = "neither" if body.id is None else "both"
            raise Refused(f"id: expected either an id or a topic, got {got}", "id")
        if body.id is not None:
            return await self._explain_task(request[CALLER].task_name(body.id))
        name = request[CALLER].own_topic(parse_topic(body.topic))
        with self._pending_writes.reserve():
            partial = PartialAnswer(self._store)
            now = (await self._store.time.now()).low
            facts = await self._topic_facts(name, now)
            waiting_for_origins, waiting_after_faults = await self._count_waiting(name, facts.policy)
            facts = facts._replace(
                waiting_for_origins=waiting_for_origins,
                waiting_after_faults=waiting_after_faults,
                origin_holds=await self._origin_holds(name, now),
            )
            explanation = explain_topic(facts, now)
        return json_response({"sentence": explanation.sentence, **explanation.details, **partial.fields()})

    async def _explain_task(self, name: str) -> web.StreamResponse:
        with self._pending_writes.reserve():
            [record] = await self._store.lookup.query([name])
            if isinstance(record, LaterError):
                raise record
            partial = PartialAnswer(self._store)
            now = (await self._store.time.now()).low
            topic = await self._topic_facts(record.topic, now)
            origin = _origin_of(record, topic.policy)
            held_until = None if origin is None else await self._store.origin_holds.held_until(record.topic, origin)
        facts = TaskFacts(
            id=record.id,
            state=record.state.value,
            score=record.score,
            attempts=record.attempts,
            failure=record.failure,
            task=record.task if isinstance(record.task, Task) else None,
            origin=None if origin is None else origin.authority,
            origin_held_until=held_until,
            first_due_at=record.first_due_at,
            put_back_for=record.put_back_for,
            lease_ms=self._lease_ms + topic.policy.timeout_ms - self._store.policies.latest.daemon.timeout_ms,
        )
        explanation = explain_task(facts, topic, now)
        return json_response(
            {
                "sentence": explanation.sentence,
                **explanation.details,
                "last_error": last_error_view(record.failure, facts.task),
                "last_failures": failure_views(record.failure, facts.task) or [],
                **partial.fields(),
            }
        )

    async def _topic_facts(self, name: str, now: int) -> TopicFacts:
        policies = await self._store.policies.look()
        state = await self._store.stats.topic_state(name, now)
        counts, heartbeats = state.counts, state.heartbeats
        return TopicFacts(
            name=name,
            policy=policies.for_topic(name),
            is_namespace_callback=policies.level_of(topic_scope(name), "callback") is Level.NAMESPACE,
            delay=counts.delay,
            unack=counts.unack,
            error=counts.error,
            dead=counts.dead,
            due=counts.due,
            oldest_due_at=counts.oldest_due_at,
            next_due_at=state.next_due_at,
            paused=state.paused,
            held_until=state.held_until,
            full_speed_at=self._store.policies.ramps.get(name),
            workers=sum(now - at < HEARTBEAT_TIMEOUT_MS for at in heartbeats),
            last_heartbeat_at=max(heartbeats, default=None),
        )

    async def _origin_holds(self, topic: str, now: int) -> dict[str, int]:
        """Return the origins of a topic that are held, and until when (ms). Few topics have any."""
        if topic not in self._store.policies.held_origin_topics:
            return {}
        held = (await self._store.origin_holds.read([topic], now))[topic]
        return {origin.authority: until for origin, until in held.items()}

    async def _count_waiting(self, topic: str, policy: Policy) -> tuple[Counter[str], int]:
        """Return how many of the first tasks in delay were put back, by their origins, and how many for a fault."""
        counts: Counter[str] = Counter()
        seen = after_faults = 0
        sample = self._store.listing.slices([BucketRange(topic, Bucket.DELAY)], SAMPLE)
        with suppress(NodeDown):  # a list is of all shards
            async with aclosing(sample) as slices:
                async for tasks, _, _ in slices:
                    seen += len(tasks)
                    for record in tasks:
                        if record.put_back_for is Held.FAULT:
                            after_faults += 1
                        elif record.first_due_at is not None and (origin := _origin_of(record, policy)) is not None:
                            counts[origin.authority] += 1
                    if seen >= SAMPLE:
                        break
        return counts, after_faults


def _origin_of(record: TaskRecord, policy: Policy) -> Origin | None:
    """Return the origin of a task's callback, or of its topic's policy's; None if there is none to call."""
    if not isinstance(record.task, Task):
        return None
    try:
        return Origin.of(record.task.callback or policy.called_by_default)
    except ValueError:
        return None
