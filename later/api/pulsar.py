"""Pulsar's admin routes for delayed delivery (PIP-315), for its tooling and its users.

They read and change the same policies as later's own routes. `active` is the field `delays`, and
`maxDeliveryDelayInMillis` is `max_delay`. If `active` is false, a Pulsar broker delivers at once; later refuses the
task, because it never delivers early. `tickTime` has no effect: it is stored and returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from later.api.json_response import DATA_HEADERS, json_response
from later.api.policies import change_settings, parse_namespace
from later.api.requests import parse_switch, path_parameter, read_body
from later.core.audit_event import AuditAction
from later.core.errors import Refused
from later.core.json_body import parse_object, unknown_field
from later.core.policy import POLICY_FIELDS, PolicyValue
from later.core.policy_scopes import Policies, PolicyScope, Settings, topic_scope
from later.core.validation import MAX_TTL_MS, parse_topic, refusal
from later.store.audit_trail import AuditTrail
from later.store.policies import PolicyBook

ACTIVE = "active"
TICK_TIME = "tickTime"
MAX_DELAY = "maxDeliveryDelayInMillis"
DEFAULT_TICK_TIME_MS = 1000
"""Pulsar's default (`delayedDeliveryTickTimeMillis`)."""

_MILLISECONDS = f"an integer of milliseconds from 0 to {MAX_TTL_MS}"
_EXPECTED = {ACTIVE: "true or false", TICK_TIME: _MILLISECONDS, MAX_DELAY: _MILLISECONDS}


class PulsarHandlers:
    """Handlers of delayed delivery on one level. `parse_scope` returns the topic or namespace of a request."""

    def __init__(
        self,
        *,
        policies: PolicyBook,
        audit_trail: AuditTrail,
        max_body: int,
        parse_scope: Callable[[web.Request], PolicyScope],
    ) -> None:
        self._policies = policies
        self._change_settings = partial(change_settings, policies, audit_trail)
        self._max_body = max_body
        self._parse_scope = parse_scope

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET …/delayedDelivery`: the scope's own settings, or with `applied=true` those that apply."""
        scope, is_applied = self._parse_scope(request), parse_switch(request.query, "applied")
        policies = await self._policies.read()
        if not is_applied:
            return json_response(_settings_view(policies.settings_at(scope)))
        policy, tick_time_ms = policies.for_scope(scope), _applied_tick_time_ms(policies, scope)
        return json_response({ACTIVE: policy.delays, TICK_TIME: tick_time_ms, MAX_DELAY: policy.max_delay_ms})

    async def change(self, request: web.Request) -> web.StreamResponse:
        """`POST …/delayedDelivery`: set the fields in the body, and no others."""
        scope = self._parse_scope(request)
        values = _check_fields(parse_object(await read_body(request, self._max_body)))
        fields: dict[str, PolicyValue | None] = {}
        if ACTIVE in values:
            fields["delays"] = values[ACTIVE]
        if MAX_DELAY in values:
            fields["max_delay"] = POLICY_FIELDS["max_delay"].format(values[MAX_DELAY])

        def edit(settings: Settings) -> Settings:
            tick_time_ms = values.get(TICK_TIME, settings.tick_time_ms)
            return msgspec.structs.replace(settings.merge(fields), tick_time_ms=tick_time_ms)

        return await self._edit(request, scope, edit)

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE …/delayedDelivery`."""

        def edit(settings: Settings) -> Settings:
            merged = settings.merge({"delays": None, "max_delay": None})
            return msgspec.structs.replace(merged, tick_time_ms=None)

        return await self._edit(request, self._parse_scope(request), edit)

    async def _edit(
        self, request: web.Request, scope: PolicyScope, edit: Callable[[Settings], Settings]
    ) -> web.StreamResponse:
        try:
            await self._change_settings(
                request, AuditAction.POLICY_CHANGED, scope, lambda policies: edit(policies.settings_at(scope))
            )
        except Refused as error:  # max_delay would be below default_delay, which has no name in Pulsar
            raise Refused(f"{MAX_DELAY}: {error.detail.removeprefix(f'{error.field}: ')}", MAX_DELAY) from None
        return web.Response(status=204, headers=DATA_HEADERS)


def parse_persistent_topic(request: web.Request) -> PolicyScope:
    """Return the topic that the path names in two parts: its namespace, and its name in it. Raises Refused."""
    return topic_scope(parse_topic(f"{parse_namespace(request)}/{path_parameter(request, 'topic')}"))


def _settings_view(settings: Settings) -> dict[str, PolicyValue] | None:
    """Return all three fields if one is set, otherwise None. Pulsar's tooling cannot read only some of them."""
    delays, max_delay = settings.fields.get("delays"), settings.fields.get("max_delay")
    if delays is None and max_delay is None and settings.tick_time_ms is None:
        return None
    return {
        ACTIVE: True if delays is None else delays,
        TICK_TIME: DEFAULT_TICK_TIME_MS if settings.tick_time_ms is None else settings.tick_time_ms,
        MAX_DELAY: 0 if max_delay is None else POLICY_FIELDS["max_delay"].parse(max_delay),
    }


def _applied_tick_time_ms(policies: Policies, scope: PolicyScope | None) -> int:
    if scope is None:
        return DEFAULT_TICK_TIME_MS
    own = policies.settings_at(scope).tick_time_ms
    return _applied_tick_time_ms(policies, scope.parent) if own is None else own


def _check_fields(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a body that are not null. Raises Refused, with the name of the first wrong field."""
    for name, value in values.items():
        if name not in _EXPECTED:
            raise unknown_field(name, _EXPECTED)
        if isinstance(value, bool) or name == ACTIVE:
            is_valid = name == ACTIVE and isinstance(value, bool)
        else:
            is_valid = isinstance(value, int | float) and 0 <= value <= MAX_TTL_MS and value == int(value)
        if value is not None and not is_valid:
            raise refusal(name, value, _EXPECTED[name])
    return {
        name: int(value) if isinstance(value, float) else value for name, value in values.items() if value is not None
    }
