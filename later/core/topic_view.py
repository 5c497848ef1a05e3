"""A topic as the API shows it: its counts, what holds its due tasks, and the limits of its policy."""

from __future__ import annotations

from typing import Any

from later.core.policy import Deliver
from later.core.policy_scopes import Policies
from later.core.snapshot import CountedTopic


def topic_view(topic: CountedTopic, policies: Policies, now: int) -> dict[str, Any]:
    """Return a topic, without its name, as it was counted at `now` (ms)."""
    policy, oldest_due_at = policies.for_topic(topic.topic), topic.oldest_due_at
    return {
        "delay": topic.delay,
        "unack": topic.unack,
        "error": topic.error,
        "dead": topic.dead,
        "due": topic.due,
        "oldest_lateness_s": None if oldest_due_at is None else max(now - oldest_due_at, 0) / 1000,
        "held": topic.held.value,
        "paused": policy.paused or (topic.is_paused and policy.deliver is Deliver.PUSH),
        "rate": policy.rate or None,
        "concurrency": policy.concurrency or None,
        "deliver": policy.deliver.value,
    }
