"""The calls that show and change the policies of topics and namespaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiohttp import hdrs, web

from later.api.audit_records import record_action
from later.api.authorization import CALLER
from later.api.callback_check import CallbackCheck
from later.api.json_response import json_response
from later.api.requests import check_no_fields, parse_switch, path_parameter, read_body
from later.core.audit_event import AuditAction
from later.core.errors import NotAllowed
from later.core.json_body import parse_object
from later.core.policy import PolicyValue, format_policy, parse_policy_fields
from later.core.policy_scopes import NO_SETTINGS, Policies, PolicyScope, Settings, namespace_scope
from later.core.policy_warnings import dead_letter_warning, follow_up_warning
from later.core.validation import check_namespace
from later.store.audit_trail import AuditTrail
from later.store.policies import PolicyBook


class PolicyHandlers:
    """Handlers of the policies on one level. `parse_scope` returns the topic or namespace of a request."""

    def __init__(
        self,
        *,
        policies: PolicyBook,
        audit_trail: AuditTrail,
        callback_check: CallbackCheck,
        max_body: int,
        parse_scope: Callable[[web.Request], PolicyScope],
    ) -> None:
        self._policies = policies
        self._check_callback = callback_check.check
        self._change_settings = partial(change_settings, policies, audit_trail)
        self._max_body = max_body
        self._parse_scope = parse_scope

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET …/policy`: the scope's own settings, or with `applied=true` every field and the level that sets it."""
        scope = self._parse_scope(request)
        is_applied = parse_switch(request.query, "applied")
        policies = await self._policies.read()
        if not is_applied:
            return json_response(policies.settings_at(scope).fields)
        applied = format_policy(policies.for_scope(scope))
        return json_response(
            {name: {"value": value, "level": policies.level_of(scope, name)} for name, value in applied.items()}
        )

    async def replace(self, request: web.Request) -> web.StreamResponse:
        """`PUT …/policy`."""
        scope, fields = await self._parse_request(request)
        return await self._change(request, scope, lambda settings: settings.replace(fields))

    async def merge(self, request: web.Request) -> web.StreamResponse:
        """`PATCH …/policy` (RFC 7396)."""
        scope, fields = await self._parse_request(request)
        return await self._change(request, scope, lambda settings: settings.merge(fields))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE …/policy`."""
        return await self._change(request, self._parse_scope(request), lambda _: NO_SETTINGS)

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """`POST …/pause`: no more tasks are claimed; deliveries in flight finish."""
        scope = self._parse_scope(request)
        return await self._set_paused(
            request, AuditAction.TOPIC_PAUSED, lambda policies: policies.settings_at(scope).merge({"paused": True})
        )

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """`POST …/resume`. If the topic's namespace is paused, only this topic resumes."""
        scope = self._parse_scope(request)
        return await self._set_paused(
            request, AuditAction.TOPIC_RESUMED, lambda policies: policies.settings_to_resume(scope)
        )

    async def _set_paused(
        self, request: web.Request, action: AuditAction, decide: Callable[[Policies], Settings]
    ) -> web.StreamResponse:
        check_no_fields(await read_body(request, self._max_body))
        scope = self._parse_scope(request)
        policies = await self._change_settings(request, action, scope, decide)
        return json_response({scope.level.value: scope.name, "paused": policies.for_scope(scope).paused})

    async def _parse_request(self, request: web.Request) -> tuple[PolicyScope, dict[str, PolicyValue | None]]:
        scope = self._parse_scope(request)
        fields = parse_policy_fields(parse_object(await read_body(request, self._max_body)))
        self._check_callback(str(fields.get("callback") or ""))
        return scope, fields

    async def _change(
        self, request: web.Request, scope: PolicyScope, edit: Callable[[Settings], Settings]
    ) -> web.StreamResponse:
        policies = await self._change_settings(
            request, AuditAction.POLICY_CHANGED, scope, lambda policies: edit(policies.settings_at(scope))
        )
        warnings = (dead_letter_warning(policies, scope), follow_up_warning(policies, scope))
        warning = " ".join(text for text in warnings if text)
        return json_response({**policies.settings_at(scope).fields, **({"warning": warning} if warning else {})})


async def change_settings(
    book: PolicyBook,
    audit_trail: AuditTrail,
    request: web.Request,
    action: AuditAction,
    scope: PolicyScope,
    decide: Callable[[Policies], Settings],
) -> Policies:
    """Replace the settings of one scope by those that `decide` returns, and record both; return the policies then.

    Raises: as `PolicyBook.replace_settings`.
    """
    with record_action(audit_trail, request, action, **{scope.level: scope.name}) as details:

        def decide_and_note(policies: Policies) -> Settings:
            details["before"] = _settings_view(policies.settings_at(scope))
            settings = decide(policies)
            details["after"] = _settings_view(settings)
            return settings

        return await book.replace_settings(scope, decide_and_note)


def _settings_view(settings: Settings) -> dict[str, PolicyValue]:
    """Return the fields that are set, with Pulsar's own."""
    pulsar: dict[str, PolicyValue] = {} if settings.tick_time_ms is None else {"tick_time_ms": settings.tick_time_ms}
    return {**settings.loggable_fields, **pulsar}


def parse_namespace_scope(request: web.Request) -> PolicyScope:
    """Return the namespace that the path names. Raises Refused; NotAllowed if it is not the caller's."""
    return namespace_scope(parse_namespace(request))


def parse_namespace_policy(request: web.Request) -> PolicyScope:
    """Return the namespace whose policy the path names.

    Raises:
        Refused: it is no namespace.
        NotAllowed: it is not the caller's, or it is, and is to be changed: its operator sets a tenant's limits.
    """
    scope = parse_namespace_scope(request)
    if request[CALLER].namespace is not None and request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        detail = "namespace: this key may change the policies of its topics, not of its namespace"
        raise NotAllowed(detail, "namespace", reason="namespace")
    return scope


def parse_namespace(request: web.Request) -> str:
    """Return the name of the namespace that the path names. Raises as `parse_namespace_scope`."""
    return request[CALLER].own_namespace(check_namespace(path_parameter(request, "namespace")))
