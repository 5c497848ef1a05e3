"""The values of labels that form a closed set. Their series exist from the start, at 0.

Prometheus sees no increase in a series whose first value is 1.
"""

from __future__ import annotations

OUTCOMES = ("done", "busy", "failed", "gone")
DEATH_REASONS = ("exhausted", "gone", "busy", "expired", "lost", "body", "address", "rejected", "no callback")
PULLED = "pull"
"""The label of tasks that consumers claim: no worker ever delivers them."""
HELD = ("no", "rate", "concurrency", "pause", "receiver", "origin", "fault", PULLED)
DENIAL_REASONS = ("no_key", "mistyped", "unknown", "ended", "scope", "namespace", "rate")
REQUEUED_FROM = ("unack", "error")
DURABILITY_LEVELS = ("disk", "replica", "replica-disk")
FIRING_RESULTS = ("created", "refused")
FOLLOW_UP_FIELDS = ("on_dead", "on_done")
EVENT_TYPES = ("later.tasks.dead", "later.topic.late", "later.topic.paused", "later.store.full")

STATUS_CODES = ("408", "410", "429", "500", "502", "503", "504")
"""The statuses that have a code of their own. All others share the code of their class: any number may come."""
STATUS_CLASSES = ("3xx", "4xx", "5xx")
FAILURE_CODES = (*STATUS_CLASSES, *STATUS_CODES, "code", "timeout", "connect", "reply", "proxy", "address")
REFUSAL_CAUSES = (
    *("loopback", "private", "link-local", "shared", "platform", "multicast", "translated", "reserved"),
    *("own", "denied", "http", "proxy"),
)


def failure_code(reason: str, status: int | None) -> str:
    """Return the code of a delivery that was not done, from its outcome's reason and status.

    A status that HTTP does not know counts as 5xx (RFC 9110, section 15), and an interim one as a broken reply.
    """
    if reason != "status" or status is None:
        return reason
    if str(status) in STATUS_CODES:
        return str(status)
    if status < 300:
        return "reply"
    return f"{min(status // 100, 5)}xx"
