"""The calls that show topics: their counts, and the policies that apply."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.paging import decode_cursor, encode_cursor, parse_page_size
from later.api.requests import EXPECTED, path_parameter
from later.api.topic_rows import PartialAnswer, ReadSnapshot, count_row, recount
from later.core.caller import Caller
from later.core.clock import rfc3339
from later.core.errors import Refused
from later.core.policy import format_policy
from later.core.policy_scopes import Policies, PolicyScope, namespace_from_topic, topic_scope
from later.core.snapshot import MAX_ROWS, ORDERS, sort_rows
from later.core.topic_view import topic_view
from later.core.validation import check_namespace, parse_topic, refusal
from later.store.open import Store
from later.store.topic_counts import TopicCounts

BY_NAME = "name"
TOPIC_ORDERS = (BY_NAME, *ORDERS)
"""The orders in which topics are listed. Only by name are all of them listed, in pages."""


class TopicHandlers:
    """Handlers that show topics."""

    def __init__(self, store: Store, read_snapshot: ReadSnapshot) -> None:
        self._store = store
        self._read_snapshot = read_snapshot

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics`."""
        query = request.query
        limit = parse_page_size(query.get("limit"))
        caller = request[CALLER]
        namespace = caller.own_namespace(check_namespace(query["namespace"])) if "namespace" in query else None
        namespace = namespace or caller.namespace
        order = _parse_order(query.get("sort", BY_NAME))
        if order != BY_NAME:
            if "cursor" in query:
                raise Refused(f"cursor: expected none with sort={order}, which has one page", "cursor")
            return await self._list_sorted(order, namespace, min(limit, MAX_ROWS))
        after = _parse_cursor(query["cursor"], caller) if "cursor" in query else ""
        policies, partial = await self._store.policies.look(), PartialAnswer(self._store)
        now = (await self._store.time.now()).low
        found = await self._store.topic_index.page(
            policies.topics_between, now, limit=limit + 1, after=after, namespace=namespace
        )
        names = [*found][:limit]
        topics = [{"topic": name, **_view(name, found[name], policies, now)} for name in names]
        cursor = encode_cursor(names[-1]) if len(found) > limit else None
        return json_response({"topics": topics, "cursor": cursor, **partial.fields()})

    async def _list_sorted(self, order: str, namespace: str | None, limit: int) -> web.StreamResponse:
        """Return the first topics in an order, of those that the last census found to be first in any order."""
        snapshot, policies = await self._read_snapshot(), await self._store.policies.current()
        partial = PartialAnswer(self._store)
        now = (await self._store.time.now()).low
        rows = [] if snapshot is None else sort_rows(snapshot.rows_of(namespace), order)[:limit]
        found = await recount(self._store, rows, policies, now)
        taken_at = now if snapshot is None else snapshot.at
        views = found.rows(policies, now, taken_at)
        topics = [views[row.topic] for row in sort_rows(found.all, order)]
        counted_at = None if snapshot is None else rfc3339(snapshot.at)
        fields = partial.fields(counted_partly=snapshot is not None and snapshot.partial)
        return json_response({"topics": topics, "cursor": None, "counted_at": counted_at, **fields})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics/{topic}`. A topic that was never used is shown, too, because topics need no declaration."""
        scope = parse_topic_scope(request)
        policies, partial = await self._store.policies.look(), PartialAnswer(self._store)
        now = (await self._store.time.now()).low
        counts = (await self._store.stats.counts_and_holds([scope.name], now))[scope.name]
        return json_response(
            {
                "topic": scope.name,
                "namespace": namespace_from_topic(scope.name),
                **_view(scope.name, counts, policies, now),
                "policy": format_policy(policies.for_scope(scope)),
                **partial.fields(),
            }
        )


def parse_topic_scope(request: web.Request) -> PolicyScope:
    """Return the topic that the path names. Raises Refused; NotAllowed if it is not in the caller's namespace."""
    return topic_scope(request[CALLER].own_topic(parse_topic(path_parameter(request, "topic"))))


def _parse_order(text: str) -> str:
    """Return the order of topics that a query names. Raises Refused."""
    if text not in TOPIC_ORDERS:
        raise refusal("sort", text, f"one of {', '.join(TOPIC_ORDERS)}")
    return text


def _parse_cursor(cursor: str, caller: Caller) -> str:
    """Return the topic after which the next page begins.

    Raises:
        Refused: no answer to this caller had this cursor.
    """
    topic = decode_cursor(cursor)
    if caller.namespace not in (None, namespace_from_topic(topic)):
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return topic


def _view(topic: str, counts: TopicCounts, policies: Policies, now: int) -> dict[str, Any]:
    """Return a topic that has just been counted, without its name."""
    return topic_view(count_row(topic, counts, policies, now), policies, now)
