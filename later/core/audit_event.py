"""The events of the audit trail: what changed keys, policies, topics or many tasks, by whom, and with what outcome."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

AUDIT_LOGGER = "later.audit"
"""The logger of these events, of the standard library. `log.setup` writes what it gets as JSON, whatever the level."""


class AuditAction(StrEnum):
    """The actions that are recorded."""

    KEY_MADE = "key made"
    KEY_REVOKED = "key revoked"
    KEY_ROTATED = "key rotated"
    KEY_ENDED = "key ended"
    SIGNING_ROTATED = "signing secret rotated"
    POLICY_CHANGED = "policy changed"
    TOPIC_PAUSED = "topic paused"
    TOPIC_RESUMED = "topic resumed"
    TOPIC_PURGED = "topic purged"
    QUEUE_DELETED = "queue deleted"
    DEAD_REDRIVEN = "dead tasks redriven"
    SCHEDULE_PUT = "schedule put"
    SCHEDULE_DELETED = "schedule deleted"
    SCHEDULE_PAUSED = "schedule paused"
    SCHEDULE_RESUMED = "schedule resumed"
    DATA_IMPORTED = "data imported"


KEY_ACTIONS = frozenset({AuditAction.KEY_MADE, AuditAction.KEY_REVOKED, AuditAction.KEY_ROTATED, AuditAction.KEY_ENDED})
"""Actions whose events have the id of a key among their details."""


class AuditOutcome(StrEnum):
    """How an action ended. It is unknown if the store's answer was lost."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One action.

    `key` says who did it: the id of an API key, `cli:<user>` for a command that opened the store itself, None for a
    caller without a key. `peer` is the caller's address. `namespace` is that of what was changed, None for all.
    `details` say what was changed, such as `topic`, `tasks`, `before`, `after`. They hold no content or header of a
    task, no key and no secret; their names are not those of the fields of this class.
    """

    action: AuditAction
    key: str | None
    peer: str | None = None
    namespace: str | None = None
    outcome: AuditOutcome = AuditOutcome.DONE
    details: Mapping[str, Any] = {}

    def as_fields(self) -> dict[str, Any]:
        """Return the event as one flat JSON object. A detail that is None is left out."""
        details = {name: value for name, value in self.details.items() if value is not None}
        return {
            "event": self.action.value,
            "key": self.key,
            "peer": self.peer,
            "namespace": self.namespace,
            "outcome": self.outcome.value,
            **details,
        }

    def merge(self, later: AuditEvent) -> AuditEvent | None:
        """Return one event for this one and a later one, if both are requests of one purge or redrive.

        Such an action is thousands of requests, which would drive everything else out of the trail. Their `tasks` are
        added up.
        """
        tasks, more = self.details.get("tasks"), later.details.get("tasks")
        if tasks is None or more is None:
            return None
        together = msgspec.structs.replace(self, details={**self.details, "tasks": tasks + more})
        expected = msgspec.structs.replace(later, details={**later.details, "tasks": tasks + more})
        return together if together == expected else None
