"""Follow-up tasks: those that a topic gets when tasks of another one end, by its policy's `on_dead` and `on_done`.

A follow-up task has no callback of its own, is due at once, and says in its content which task has ended, and how. It
belongs to the trace in which that task was created. Its own end makes no task, whatever the policy of its topic says,
so that no chain of them can go round.
"""

from __future__ import annotations

from later.core.errors import UnreadableBody
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import SettleTarget
from later.core.task import Task, creation_context
from later.core.trace_context import sampled_only

FIELD_OF_END = {SettleTarget.DEAD: "on_dead", SettleTarget.DONE: "on_done"}
"""The policy field that says which topic gets a task, by how a task ends."""


def follow_up_topic(topic: str, task: Task | UnreadableBody, target: SettleTarget, policies: Policies) -> str:
    """Return the topic that gets a task when this one of `topic` is settled so; "" if none does."""
    field = FIELD_OF_END.get(target)
    if field is None or (isinstance(task, Task) and task.is_follow_up):
        return ""
    return policies.follow_up_topic(topic, field)


def build_follow_up(
    topic: str, id: str, content: str, policy: Policy, now: int, of: Task | UnreadableBody | None = None
) -> Task:
    """Return a follow-up task of `topic`, made and due at `now` (ms), with the retries and the ttl of its policy.

    `of` is the task that ended.
    """
    return Task(
        id=id,
        own_id=False,
        topic=topic,
        callback="",
        content=content,
        headers={},
        max_retry=policy.retry,
        created_at=now,
        execute_at=now,
        expires_at=now + policy.ttl_ms if policy.ttl_ms else None,
        is_follow_up=True,
        trace_context=sampled_only(creation_context(of)) if isinstance(of, Task) else b"",
    )
