"""The calls that rotate signing secrets, and show which are in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from later.api.audit_records import record_action
from later.api.json_response import json_response
from later.api.policies import parse_namespace
from later.api.requests import EXPECTED, read_body
from later.core.audit_event import AuditAction
from later.core.clock import rfc3339
from later.core.json_body import body_parser
from later.core.policy import Sign, plain_number
from later.core.policy_scopes import PolicyScope, namespace_scope
from later.core.signing import DEFAULT_OVERLAP_S, MAX_OVERLAP_S, KeyRing, SecretScope
from later.core.validation import refusal, to_milliseconds
from later.store.open import Store


class RotationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a rotation, as it came: for how many seconds the present secret goes on signing."""

    overlap: float | None = None


_parse_request = body_parser(RotationRequest, EXPECTED)


class RotationHandlers:
    """Handlers of the signing secrets on one level. `parse_scope` returns the topic or namespace of a request."""

    def __init__(self, *, store: Store, max_body: int, parse_scope: Callable[[web.Request], PolicyScope]) -> None:
        self._store = store
        self._max_body = max_body
        self._parse_scope = parse_scope

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET …/signing`: the generations that sign, and until when; never a secret."""
        scope = self._parse_scope(request)
        return json_response(await self._view(scope, await self._store.signing.read()))

    async def rotate(self, request: web.Request) -> web.StreamResponse:
        """`POST …/signing/rotate`: the answer is the only one that has the new secret."""
        scope = self._parse_scope(request)
        overlap_ms = _parse_overlap_ms(await read_body(request, self._max_body))
        changed = {str(scope.level): scope.name, "overlap": plain_number(overlap_ms / 1000)}
        with record_action(self._store.audit_trail, request, AuditAction.SIGNING_ROTATED, **changed) as details:
            ring = await self._store.signing.rotate(_secret_scope(scope), overlap_ms)
            details["generation"] = ring.generations(_secret_scope(scope))[0].g
        view = await self._view(scope, ring)
        newest, *_ = ring.secrets(_secret_scope(scope), (await self._store.time.now()).low)
        return json_response({**view, "secret": newest.text})

    async def _view(self, scope: PolicyScope, ring: KeyRing) -> dict[str, Any]:
        now = (await self._store.time.now()).low
        generations = [
            {
                "generation": generation.g,
                "since": None if generation.since is None else rfc3339(generation.since),
                "until": None if generation.until is None else rfc3339(generation.until),
            }
            for generation in ring.generations(_secret_scope(scope))
            if generation.is_live(now)
        ]
        return {str(scope.level): scope.name, "generations": generations}


def parse_secret_namespace(request: web.Request) -> PolicyScope:
    """Return the namespace that the path names. A key bound to it may rotate its secret, which limits nobody.

    Raises:
        Refused: it is no namespace.
        NotAllowed: it is not the caller's.
    """
    return namespace_scope(parse_namespace(request))


def _secret_scope(scope: PolicyScope) -> SecretScope:
    return SecretScope(Sign(scope.level.value), scope.name)


def _parse_overlap_ms(body: bytes) -> int:
    """Return the overlap that a body asks for. Raises Refused."""
    overlap = _parse_request(body).overlap if body.strip() else None
    if overlap is None:
        overlap = DEFAULT_OVERLAP_S
    if not 0 <= overlap <= MAX_OVERLAP_S:
        raise refusal("overlap", overlap, EXPECTED["overlap"])
    return to_milliseconds(overlap)
