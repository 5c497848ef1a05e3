"""The audit events of calls: who made one, from where, what it changed, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from later.api.authorization import CALLER
from later.core.audit_event import AuditAction, AuditEvent, AuditOutcome
from later.core.errors import Conflict, NotFound, Refused, StoreDown
from later.core.policy_scopes import namespace_from_topic
from later.store.audit_trail import AuditTrail


@contextmanager
def record_action(
    trail: AuditTrail, request: web.Request, action: AuditAction, **details: Any
) -> Iterator[dict[str, Any]]:
    """Record an action when the block ends, whichever way. The block may add to the details that it gets.

    The event's namespace is the detail `namespace`, or that of the detail `topic`.
    """
    outcome = AuditOutcome.UNKNOWN  # of a call that is cancelled, or fails by a fault of later's own
    try:
        yield details
        outcome = AuditOutcome.DONE
    except (Refused, NotFound, Conflict):
        outcome = AuditOutcome.REFUSED
        raise
    except StoreDown as error:
        outcome = AuditOutcome.UNKNOWN if error.unknown else AuditOutcome.FAILED
        raise
    finally:
        namespace = namespace_from_topic(details["topic"]) if "topic" in details else details.pop("namespace", None)
        event = AuditEvent(
            action=action,
            key=request[CALLER].key_id,
            peer=request.remote,
            namespace=namespace,
            outcome=outcome,
            details=details,
        )
        trail.record(event)
