"""Pulsar's admin routes for delayed delivery (PIP-315), so that its tooling and habits carry over.

They read and change the same policies as the routes of our own: `active` is the field `delays` (where it is false a
broker delivers at once, later refuses: nothing may come early), `maxDeliveryDelayInMillis` is `max_delay`. `tickTime`
means nothing here; it is kept and told again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from later.api.schemas import json_response, parse_switch, path_parameter, read_body
from later.api.topics import parse_namespace_scope
from later.core.errors import Refused
from later.core.parsing import parse_object, unknown_field
from later.core.policy import FIELDS, PolicyValue
from later.core.policy_scopes import Policies, PolicyScope, Settings, topic_scope
from later.core.validation import MAX_TTL_MS, describe, parse_topic
from later.store.policies import PolicyBook

ACTIVE = "active"
TICK_TIME = "tickTime"
LIMIT = "maxDeliveryDelayInMillis"
DEFAULT_TICK_TIME_MS = 1000
"""Pulsar's (`delayedDeliveryTickTimeMillis`)."""

_MILLISECONDS = f"an integer of milliseconds from 0 to {MAX_TTL_MS}"
_TAKES = {ACTIVE: "true or false", TICK_TIME: _MILLISECONDS, LIMIT: _MILLISECONDS}


class PulsarHandlers:
    """Handlers for the delayed delivery of one level; `asked` says whose a request is about."""

    def __init__(
        self, *, policies: PolicyBook, max_body: int, parse_scope: Callable[[web.Request], PolicyScope]
    ) -> None:
        self._policies = policies
        self._max_body = max_body
        self._parse_scope = parse_scope

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET …/delayedDelivery`: what is set there, or with `applied=true` what applies."""
        place, applied = self._parse_scope(request), parse_switch(request.query, "applied")
        policies = await self._policies.read()
        return json_response(_applied(policies, place) if applied else _set_there(policies.settings_at(place)))

    async def change(self, request: web.Request) -> web.StreamResponse:
        """`POST …/delayedDelivery`: sets what the body names, and nothing else."""
        place = self._parse_scope(request)
        given = _checked(parse_object(await read_body(request, self._max_body)))
        return await self._edit(place, lambda settings: _with(settings, given))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE …/delayedDelivery`."""
        return await self._edit(self._parse_scope(request), _without)

    async def _edit(self, place: PolicyScope, edit: Callable[[Settings], Settings]) -> web.StreamResponse:
        try:
            await self._policies.change(place, edit)
        except Refused as error:
            raise _in_their_words(error) from None
        return web.Response(status=204)


def parse_persistent_topic(request: web.Request) -> PolicyScope:
    """The topic that the path names by its namespace and its name within. Raises Refused."""
    return topic_scope(parse_topic(f"{parse_namespace_scope(request).name}/{path_parameter(request, 'topic')}"))


def _set_there(settings: Settings) -> dict[str, PolicyValue] | None:
    """All three fields as soon as one is set: Pulsar's tooling knows no half of them."""
    delays, limit = settings.fields.get("delays"), settings.fields.get("max_delay")
    if delays is None and limit is None and settings.tick_time_ms is None:
        return None
    return {
        ACTIVE: True if delays is None else delays,
        TICK_TIME: DEFAULT_TICK_TIME_MS if settings.tick_time_ms is None else settings.tick_time_ms,
        LIMIT: 0 if limit is None else FIELDS["max_delay"].parse(limit),
    }


def _applied(policies: Policies, place: PolicyScope) -> dict[str, PolicyValue]:
    policy = policies.for_scope(place)
    return {ACTIVE: policy.delays, TICK_TIME: _tick_time_ms(policies, place), LIMIT: policy.max_delay_ms}


def _tick_time_ms(policies: Policies, place: PolicyScope | None) -> int:
    if place is None:
        return DEFAULT_TICK_TIME_MS
    own = policies.settings_at(place).tick_time_ms
    return _tick_time_ms(policies, place.parent) if own is None else own


def _checked(given: Mapping[str, object]) -> dict[str, Any]:
    """The fields that are given; null is as good as nothing. Raises Refused, with the name of the first wrong one."""
    for name, value in given.items():
        if name not in _TAKES:
            raise unknown_field(name)
        if value is not None and not _fits(name, value):
            raise Refused(f"{name}: expected {_TAKES[name]}, got {describe(value)}", name)
    return {name: value for name, value in given.items() if value is not None}


def _fits(name: str, value: object) -> bool:
    if name == ACTIVE or isinstance(value, bool):
        return name == ACTIVE and isinstance(value, bool)
    return isinstance(value, int) and 0 <= value <= MAX_TTL_MS


def _with(settings: Settings, given: Mapping[str, Any]) -> Settings:
    fields: dict[str, PolicyValue | None] = {}
    if ACTIVE in given:
        fields["delays"] = given[ACTIVE]
    if LIMIT in given:
        fields["max_delay"] = FIELDS["max_delay"].format(given[LIMIT])
    return _ticking(settings.merge(fields), given.get(TICK_TIME, settings.tick_time_ms))


def _without(settings: Settings) -> Settings:
    return _ticking(settings.merge({"delays": None, "max_delay": None}), None)


def _ticking(settings: Settings, tick_time_ms: int | None) -> Settings:
    return msgspec.structs.replace(settings, tick_time_ms=tick_time_ms)


def _in_their_words(error: Refused) -> Refused:
    """What is refused of the levels together is a limit below the default delay, which has no name here."""
    return Refused(f"{LIMIT}: {error.detail.removeprefix(f'{error.field}: ')}", LIMIT)
