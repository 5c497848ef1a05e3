"""Paths of topics, namespaces and schedules in the HTTP API."""

from __future__ import annotations

from urllib.parse import quote

from later.core.policy_scopes import PolicyScope


def scope_path(scope: PolicyScope) -> str:
    """Return the path of a topic or a namespace.

    The name is percent-encoded as a whole. Bytes that are not UTF-8 are sent as they are, and the daemon rejects them.
    """
    return f"/{scope.level}s/{quote(scope.name, safe='', errors='surrogateescape')}"


def policy_path(scope: PolicyScope) -> str:
    """Return the path of the policy of a topic or a namespace."""
    return scope_path(scope) + "/policy"


def schedule_path(id: str) -> str:
    """Return the path of a schedule, its id percent-encoded as in `scope_path`."""
    return f"/schedules/{quote(id, safe='', errors='surrogateescape')}"
