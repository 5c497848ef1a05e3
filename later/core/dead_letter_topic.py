"""Moves of tasks to dead-letter topics: those in which a task lives on that dies in a topic with a `dead_to`. Pure.

In its dead-letter topic a task begins anew: its attempts, its failures, its ttl. Its body keeps how it died.
"""

from __future__ import annotations

import msgspec

from later.core.policy_scopes import Policies
from later.core.retry import SettleTarget, Verdict
from later.core.task import Death, Task


def move_dead(verdict: Verdict, task: Task, policies: Policies) -> Verdict:
    """Return the verdict on `task`; if it dies in a topic that has a dead-letter topic, with the task that moves there.

    Its ttl there counts from its death, and is the `dead_ttl` of the topic in which it died.
    """
    failure = verdict.failure
    if verdict.target is not SettleTarget.DEAD or failure is None:
        return verdict
    target = policies.dead_letter_topic(task.topic)
    if not target:
        return verdict
    ttl_ms = policies.for_topic(task.topic).dead_ttl_ms
    moved = msgspec.structs.replace(
        task,
        topic=target,
        expires_at=verdict.at + ttl_ms if ttl_ms else None,
        renewed_at=verdict.at,
        death=Death(
            task.topic,
            failure.reason,
            failure.status,
            failure.message,
            failure.at,
            failure.attempt,
            None if task.expires_at is None else task.expires_at - task.ttl_starts_at,
            failure.took_ms,
            failure.earlier,
        ),
    )
    return msgspec.structs.replace(verdict, moved=moved)


def move_back(task: Task, death: Death, now: int) -> Task:
    """Return a task that goes back at `now` (ms) to where it died; its ttl, if it had one, counts from then on."""
    expires_at = None if death.ttl_ms is None else now + death.ttl_ms
    return msgspec.structs.replace(task, topic=death.topic, expires_at=expires_at, renewed_at=now, death=None)
