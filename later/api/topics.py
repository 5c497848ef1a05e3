"""Topics and namespaces: what stands in them, and what they allow."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aiohttp import web

from later.api.schemas import json_response, parse_query, parse_switch, path_parameter, read_body
from later.core import policy, policy_scopes
from later.core.errors import Refused
from later.core.parsing import parse_object
from later.core.policy import PolicyValue, parse_fields
from later.core.policy_scopes import NO_SETTINGS, Level, Policies, PolicyScope, Settings, namespace_scope, topic_scope
from later.core.validation import check_namespace, describe, parse_topic
from later.store.open import Store
from later.store.policies import PolicyBook
from later.store.stats import TopicCounts

MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 100
"""How many topics an answer shows where its caller does not say."""


class TopicHandlers:
    """Handlers that show topics."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics`."""
        wanted = _wanted(parse_query(request, "namespace", "cursor", "limit"))
        found = await self._found(wanted)
        names = found[: wanted.limit]
        figures = await self._figures(names)
        topics = [{"topic": name, **figures[name]} for name in names]
        return json_response({"topics": topics, "cursor": _cursor(names[-1]) if len(found) > wanted.limit else None})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics/{topic}`. One that nobody has used is shown too: it needs no declaring."""
        parse_query(request)
        place = parse_topic_scope(request)
        policies = await self._store.policies.read()
        figures = (await self._figures([place.name]))[place.name]
        applied = policy.format_policy(policies.for_scope(place))
        return json_response(
            {
                "topic": place.name,
                "namespace": policy_scopes.namespace_from_topic(place.name),
                **figures,
                "policy": applied,
            }
        )

    async def _found(self, wanted: TopicQuery) -> list[str]:
        """The topics of a page, and one more where another page follows."""
        settings = (await self._store.policies.read()).settings
        found = wanted.first(place.name for place in settings if place.level is Level.TOPIC)
        async for names in self._store.stats.topic_names():
            found = wanted.first([*found, *names])
        return found

    async def _figures(self, topics: list[str]) -> dict[str, dict[str, float | None]]:
        now = (await self._store.now()).low
        counts = await self._store.stats.counts_for(topics, now)
        return {name: _figures(counts[name], now) for name in topics}


class PolicyHandlers:
    """Handlers for the policies of one level; `asked` says whose a request is about."""

    def __init__(
        self, *, policies: PolicyBook, max_body: int, parse_scope: Callable[[web.Request], PolicyScope]
    ) -> None:
        self._policies = policies
        self._max_body = max_body
        self._parse_scope = parse_scope

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET …/policy`: what is set there, or with `applied=true` what applies and where it comes from."""
        place = self._parse_scope(request)
        applied = parse_switch(parse_query(request, "applied"), "applied")
        policies = await self._policies.read()
        return json_response(_origins(policies, place) if applied else policies.settings_at(place).fields)

    async def replace(self, request: web.Request) -> web.StreamResponse:
        """`PUT …/policy`."""
        place, fields = await self._read(request)
        return await self._change(place, lambda settings: settings.replace(fields))

    async def merge(self, request: web.Request) -> web.StreamResponse:
        """`PATCH …/policy` (RFC 7396)."""
        place, fields = await self._read(request)
        return await self._change(place, lambda settings: settings.merge(fields))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE …/policy`."""
        parse_query(request)
        return await self._change(self._parse_scope(request), lambda _: NO_SETTINGS)

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """`POST …/pause`: nothing more is claimed; what is under way ends."""
        return await self._set_paused(request, paused=True)

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """`POST …/resume`: also where its namespace is paused, which stays so for the others."""
        place = self._parse_scope(request)
        above = (await self._policies.read()).with_settings(place, NO_SETTINGS).for_scope(place)
        return await self._set_paused(request, paused=False if above.paused else None)

    async def _set_paused(self, request: web.Request, paused: bool | None) -> web.StreamResponse:
        parse_query(request)
        await read_body(request, self._max_body)
        place = self._parse_scope(request)
        policies = await self._policies.change(place, lambda settings: settings.merge({"paused": paused}))
        return json_response({place.level.value: place.name, "paused": policies.for_scope(place).paused})

    async def _read(self, request: web.Request) -> tuple[PolicyScope, dict[str, PolicyValue | None]]:
        parse_query(request)
        return self._parse_scope(request), parse_fields(parse_object(await read_body(request, self._max_body)))

    async def _change(self, place: PolicyScope, edit: Callable[[Settings], Settings]) -> web.StreamResponse:
        policies = await self._policies.change(place, edit)
        return json_response(policies.settings_at(place).fields)


def parse_topic_scope(request: web.Request) -> PolicyScope:
    """The topic that the path names. Raises Refused."""
    return topic_scope(parse_topic(path_parameter(request, "topic")))


def parse_namespace_scope(request: web.Request) -> PolicyScope:
    """The namespace that the path names. Raises Refused."""
    return namespace_scope(check_namespace(path_parameter(request, "namespace")))


def _origins(policies: Policies, place: PolicyScope) -> dict[str, dict[str, PolicyValue]]:
    """Every field's value that applies, and the level that it comes from."""
    applied = policy.format_policy(policies.for_scope(place))
    return {name: {"value": value, "level": policies.origin(place, name)} for name, value in applied.items()}


def _figures(counts: TopicCounts, now: int) -> dict[str, float | None]:
    oldest = counts.oldest_due_at
    return {
        "delay": counts.delay,
        "unack": counts.unack,
        "error": counts.error,
        "dead": counts.dead,
        "due": counts.due,
        "oldest_lateness_s": None if oldest is None else (now - oldest) / 1000,
    }


# Pages


class TopicQuery(NamedTuple):
    """What a page is to show: the first topics after a name, of one namespace or (None) of all."""

    namespace: str | None
    after: str
    limit: int

    def first(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the page shows, and one more: then another page follows.

        In the order of code points, which is that of UTF-8 bytes.
        """
        return sorted({name for name in names if self._fits(name)})[: self.limit + 1]

    def _fits(self, name: str) -> bool:
        return name > self.after and self.namespace in (None, policy_scopes.namespace_from_topic(name))


def _wanted(query: Mapping[str, str]) -> TopicQuery:
    of = query.get("namespace")
    return TopicQuery(
        namespace=None if of is None else check_namespace(of),
        after=_after(query["cursor"]) if "cursor" in query else "",
        limit=_limit(query["limit"]) if "limit" in query else DEFAULT_PAGE_SIZE,
    )


def _limit(text: str) -> int:
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PAGE_SIZE)) and 1 <= int(text) <= MAX_PAGE_SIZE
    ):
        raise Refused(f"limit: expected an integer from 1 to {MAX_PAGE_SIZE}, got {describe(text)}", "limit")
    return int(text)


def _cursor(name: str) -> str:
    """The page's last name, and nothing else: so it means the same whatever comes and goes."""
    return urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _after(cursor: str) -> str:
    try:
        name = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        name = ""
    if not name or _cursor(name) != cursor:
        raise Refused(f"cursor: expected one of an earlier answer's, got {describe(cursor)}", "cursor")
    return name
