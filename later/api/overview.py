"""`GET /overview`: the store, its workers, its tasks and its worst topics, and one sentence about them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.overview_views import lateness_view, rates_view, store_view, workers_view
from later.api.topic_rows import PartialAnswer, ReadSnapshot, Recounted, recount
from later.core.clock import rfc3339
from later.core.errors import NodeDown
from later.core.explain import TopicFacts
from later.core.history import SHORT, Fields, value_in_slot
from later.core.overview import LateTopic, Situation, judge_situation, sort_by_gravity
from later.core.policy_scopes import Level, Policies, topic_scope
from later.core.snapshot import CountedTopic, Snapshot, TopicSums, sum_rows
from later.core.validation import refusal
from later.store.instances import Instances
from later.store.open import Store
from later.store.stats import HEARTBEAT_TIMEOUT_MS

DEFAULT_TOPICS, MAX_TOPICS = 20, 200
KEPT_S = 1.0
"""How long an overview is kept for those who ask next."""
MAX_KEPT = 100
"""Namespaces whose overviews are kept."""


class Overview(NamedTuple):
    """An overview without its topics, and these: as many as anybody may ask for."""

    answer: dict[str, Any]
    topics: list[dict[str, Any]]


class _Facts(NamedTuple):
    """The facts of an overview at `now` (ms). `fields` are those of the slot of the history that begins at `slot_at`.

    `instances` is None if their node has been away since the start of this process.
    `sums` are those at `summed_at` (ms): `now`, if all topics of the snapshot were counted anew.
    `snapshot` is None if there is none.
    """

    now: int
    namespace: str | None
    snapshot: Snapshot | None
    policies: Policies
    topics: Recounted
    instances: Instances | None
    slot_at: int
    fields: Fields | None
    sums: TopicSums
    summed_at: int
    partial: PartialAnswer

    @property
    def heartbeats(self) -> list[int]:
        """The last heartbeats (ms) of all workers, as far as they are known."""
        return [] if self.instances is None else [*self.instances.workers.values()]

    @property
    def workers(self) -> int:
        """How many workers are alive: as the census has found, if their heartbeats are not known."""
        if self.instances is None:
            return 0 if self.snapshot is None else self.snapshot.store.workers
        return sum(self.now - at < HEARTBEAT_TIMEOUT_MS for at in self.heartbeats)


class OverviewHandler:
    """The handler of `/overview`. However many ask, an overview is made once a second, for each namespace."""

    def __init__(self, store: Store, read_snapshot: ReadSnapshot) -> None:
        self._store = store
        self._read_snapshot = read_snapshot
        self._kept: dict[str | None, tuple[float, asyncio.Task[Overview]]] = {}
        """The overviews by namespace, and when (s, monotonic) they were begun."""
        self._instances: tuple[Instances, int] | None = None
        """The instances as they were read last, and when (ms)."""

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /overview`."""
        limit = _parse_topics(request.query.get("topics"))
        overview = await asyncio.shield(self._share(request[CALLER].namespace))
        return json_response({**overview.answer, "topics": overview.topics[:limit]})

    def _share(self, namespace: str | None) -> asyncio.Task[Overview]:
        """Return the overview that is being made, or was made less than a second ago, or a new one."""
        at = asyncio.get_running_loop().time()
        kept = self._kept.get(namespace)
        if kept is not None:
            began, task = kept
            if not task.done() or (at - began < KEPT_S and not task.cancelled() and task.exception() is None):
                return task
        self._kept = {name: item for name, item in self._kept.items() if at - item[0] < KEPT_S or not item[1].done()}
        task = asyncio.create_task(self._make(namespace))
        if len(self._kept) < MAX_KEPT or namespace in self._kept:
            self._kept[namespace] = at, task
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return task

    async def _make(self, namespace: str | None) -> Overview:
        facts = await self._read(namespace)
        policies, now = facts.policies, facts.now
        taken_at = now if facts.snapshot is None else facts.snapshot.at
        return Overview(self._answer(facts), [*facts.topics.rows(policies, now, taken_at).values()])

    async def _read(self, namespace: str | None) -> _Facts:
        """Read all facts. It takes at most four round trips: policies, topics, instances, a slot of the history."""
        store = self._store
        snapshot, policies = await self._read_snapshot(), await store.policies.current()
        now = (await store.time.now()).low
        rows = [] if snapshot is None else sort_by_gravity(snapshot.rows_of(namespace), snapshot.at)[:MAX_TOPICS]
        partial = PartialAnswer(store)
        topics, instances, (slot_at, fields) = await asyncio.gather(
            recount(store, rows, policies, now), self._read_instances(now), self._read_slot(now, namespace)
        )
        topics = topics._replace(fresh=sort_by_gravity(topics.fresh, now))
        sums, summed_at = TopicSums(), now
        if snapshot is not None:
            sums, summed_at = snapshot.sums_of(namespace), snapshot.at
            if sums.topics == len(topics.fresh):
                sums, summed_at = sum_rows(topics.fresh), now
        return _Facts(
            now,
            namespace,
            snapshot,
            policies,
            topics,
            instances,
            slot_at,
            fields,
            sums=sums,
            summed_at=summed_at,
            partial=partial,
        )

    async def _read_instances(self, now: int) -> Instances | None:
        """Return the instances; while their node is away, as they were when they were read last (None: never)."""
        with suppress(NodeDown):
            self._instances = await self._store.instances.read(), now
        if self._instances is None:
            return None
        instances, read_at = self._instances
        return instances.moved_on(now - read_at)

    async def _read_slot(self, now: int, namespace: str | None) -> tuple[int, Fields | None]:
        """Return the last full slot of the history, which counts all namespaces together."""
        try:
            return (SHORT.last_full(now), None) if namespace is not None else await self._store.history.read_last(now)
        except NodeDown:
            return SHORT.last_full(now), None

    def _answer(self, facts: _Facts) -> dict[str, Any]:
        judgement = judge_situation(self._situation(facts), facts.now)
        sums, is_bound = facts.sums, facts.namespace is not None
        return {
            "at": rfc3339(facts.now),
            "counted_at": None if facts.snapshot is None else rfc3339(facts.snapshot.at),
            "level": judgement.level.value,
            "sentence": judgement.sentence,
            "topic": judgement.topic,
            "store": None if is_bound else store_view(facts.snapshot),
            "workers": None if is_bound or facts.instances is None else workers_view(facts.instances, facts.now),
            "tasks": {"delay": sums.delay, "unack": sums.unack, "error": sums.error, "dead": sums.dead},
            "due": sums.all_due,
            "oldest_lateness_s": _lateness_s(sums.oldest_due_at(is_held=False), facts.summed_at),
            "oldest_held_lateness_s": _lateness_s(sums.oldest_due_at(is_held=True), facts.summed_at),
            "topics_total": sums.topics,
            "topics_paused": sums.paused,
            "rates": None if facts.fields is None else rates_view(facts.slot_at, facts.fields),
            "lateness": None if facts.fields is None else lateness_view(facts.fields),
            **facts.partial.fields(counted_partly=facts.snapshot is not None and facts.snapshot.partial),
        }

    def _situation(self, facts: _Facts) -> Situation:
        """Return the facts of the sentence; a caller of one namespace may not know of the store's memory."""
        namespace, policies = facts.namespace, facts.policies
        store = None if facts.snapshot is None or namespace is not None else facts.snapshot.store
        beats, workers = facts.heartbeats, facts.workers
        late = [row for row in facts.topics.fresh if row.due]
        deadliest = max((row for row in facts.topics.all if row.dead), key=lambda row: row.dead, default=None)
        return Situation(
            sums=facts.sums,
            is_counted=facts.snapshot is not None,
            memory=0 if store is None else store.memory,
            max_memory=0 if store is None else store.max_memory,
            workers=workers,
            last_heartbeat_at=max(beats, default=None),
            has_pulled=policies.has_pulled if namespace is None else policies.has_pulled_in(namespace),
            late=[LateTopic(self._topic_facts(row, facts, workers), row.held) for row in late],
            others_due_at=_oldest_of_others(facts),
            deaths=0 if facts.fields is None else int(value_in_slot("dead", facts.fields) or 0),
            deadliest=None if deadliest is None else deadliest.topic,
        )

    def _topic_facts(self, topic: CountedTopic, facts: _Facts, workers: int) -> TopicFacts:
        """Return what explains a topic that has due tasks."""
        name, hold = topic.topic, facts.topics.counts[topic.topic].hold
        return TopicFacts(
            name=name,
            policy=facts.policies.for_topic(name),
            delay=topic.delay,
            unack=topic.unack,
            error=topic.error,
            dead=topic.dead,
            due=topic.due,
            oldest_due_at=topic.oldest_due_at,
            next_due_at=None,
            paused=hold is not None and hold.until is None,
            held_until=None if hold is None else hold.until,
            full_speed_at=self._store.policies.ramps.get(name),
            workers=workers,
            last_heartbeat_at=max(facts.heartbeats, default=None),
            is_namespace_callback=facts.policies.level_of(topic_scope(name), "callback") is Level.NAMESPACE,
        )


def _oldest_of_others(facts: _Facts) -> int | None:
    """Return the due time (ms) of the oldest task that nothing holds, unless it is of one of the snapshot's rows.

    The latest topics of all namespaces are among the rows, but if those are many, perhaps none of a namespace.
    """
    oldest = facts.sums.oldest_due_at(is_held=False)
    if facts.snapshot is None or facts.namespace is None or oldest is None:
        return None
    rows = facts.snapshot.rows_of(facts.namespace)
    if len(rows) == facts.sums.topics:
        return None
    known = sum_rows(rows).oldest_due_at(is_held=False)
    return oldest if known is None or oldest < known else None


def _lateness_s(oldest_due_at: int | None, at: int) -> float | None:
    return None if oldest_due_at is None else max(at - oldest_due_at, 0) / 1000


def _parse_topics(number: str | None) -> int:
    """Return how many topics to show. Raises Refused."""
    if number is None:
        return DEFAULT_TOPICS
    if not (number.isascii() and number.isdigit() and len(number) <= 3 and int(number) <= MAX_TOPICS):
        raise refusal("topics", number, f"an integer from 0 to {MAX_TOPICS}")
    return int(number)
