"""The calls that show topics: their counts, and the policies that apply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import web

from later.api.json_response import json_response
from later.api.paging import decode_cursor, encode_cursor, parse_page_size
from later.api.requests import path_parameter
from later.core.policy import format_policy
from later.core.policy_scopes import Level, PolicyScope, namespace_from_topic, topic_scope
from later.core.validation import check_namespace, parse_topic
from later.store.open import Store
from later.store.stats import TopicCounts


class TopicHandlers:
    """Handlers that show topics."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics`."""
        query = request.query
        page = _TopicPage(
            namespace=check_namespace(query["namespace"]) if "namespace" in query else None,
            after=decode_cursor(query["cursor"]) if "cursor" in query else "",
            limit=parse_page_size(query.get("limit")),
        )
        settings = (await self._store.policies.read()).settings
        matches = page.select(scope.name for scope in settings if scope.level is Level.TOPIC)
        async for batch in self._store.stats.topic_names():
            matches = page.select([*matches, *batch])
        names = matches[: page.limit]
        now = (await self._store.time.now()).low
        counts = await self._store.stats.counts_for(names, now)
        topics = [{"topic": name, **_counts_view(counts[name], now)} for name in names]
        cursor = encode_cursor(names[-1]) if len(matches) > page.limit else None
        return json_response({"topics": topics, "cursor": cursor})

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
    """Return the topic that the path names. Raises Refused."""
    return topic_scope(parse_topic(path_parameter(request, "topic")))


class _TopicPage(NamedTuple):
    """A page of topics: the first ones after a name, of one namespace or (None) of all."""

    namespace: str | None
    after: str
    limit: int

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the names on the page, and one more if another page follows.

        They are sorted by code points, which is the order of their UTF-8 bytes.
        """
        on_page = {name for name in names if name > self.after and self.namespace in (None, namespace_from_topic(name))}
        return sorted(on_page)[: self.limit + 1]


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
