"""The calls that show topics: their counts, and the policies that apply."""

from __future__ import annotations

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.paging import decode_cursor, encode_cursor, parse_page_size
from later.api.requests import EXPECTED, path_parameter
from later.core.caller import Caller
from later.core.policy import format_policy
from later.core.policy_scopes import PolicyScope, namespace_from_topic, topic_scope
from later.core.validation import check_namespace, parse_topic, refusal
from later.store.open import Store
from later.store.stats import TopicCounts


class TopicHandlers:
    """Handlers that show topics."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics`."""
        query = request.query
        limit = parse_page_size(query.get("limit"))
        caller = request[CALLER]
        namespace = caller.own_namespace(check_namespace(query["namespace"])) if "namespace" in query else None
        after = _parse_cursor(query["cursor"], caller) if "cursor" in query else ""
        namespace = namespace or caller.namespace
        declared = (await self._store.policies.read()).topics
        now = (await self._store.time.now()).low
        found = await self._store.topic_index.page(declared, now, limit=limit + 1, after=after, namespace=namespace)
        names = [*found][:limit]
        topics = [{"topic": name, **_counts_view(found[name], now)} for name in names]
        return json_response({"topics": topics, "cursor": encode_cursor(names[-1]) if len(found) > limit else None})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics/{topic}`. A topic that was never used is shown, too, because topics need no declaration."""
        scope = parse_topic_scope(request)
        policies = await self._store.policies.read()
        now = (await self._store.time.now()).low
        counts = (await self._store.stats.counts_for([scope.name], now))[scope.name]
        return json_response(
            {
                "topic": scope.name,
                "namespace": namespace_from_topic(scope.name),
                **_counts_view(counts, now),
                "policy": format_policy(policies.for_scope(scope)),
            }
        )


def parse_topic_scope(request: web.Request) -> PolicyScope:
    """Return the topic that the path names. Raises Refused; NotAllowed if it is not in the caller's namespace."""
    return topic_scope(request[CALLER].own_topic(parse_topic(path_parameter(request, "topic"))))


def _parse_cursor(cursor: str, caller: Caller) -> str:
    """Return the topic after which the next page begins.

    Raises:
        Refused: no answer to this caller had this cursor.
    """
    topic = decode_cursor(cursor)
    if caller.namespace not in (None, namespace_from_topic(topic)):
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return topic


def _counts_view(counts: TopicCounts, now: int) -> dict[str, float | None]:
    oldest_due_at = counts.oldest_due_at
    return {
        "delay": counts.delay,
        "unack": counts.unack,
        "error": counts.error,
        "dead": counts.dead,
        "due": counts.due,
        "oldest_lateness_s": None if oldest_due_at is None else (now - oldest_due_at) / 1000,
    }
