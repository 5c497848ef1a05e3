"""The edit of a waiting task: a pure decision, by the rules of a create."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from later.core.admit import resolve_callback, resolve_execute_at, resolve_ttl_ms
from later.core.errors import PolicyRefusal, Refused
from later.core.policy import DelayMode
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.core.validation import check_content, check_context, check_headers, check_retry


class TaskChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requested changes of the task `id`, in the units of a `Draft`. A field that is None stays as it is.

    `callback` and `ttl` differ: UNSET leaves them as they are, and None removes them, so that the policy's callback is
    called, and the task never expires. Beside other changes, None leaves a callback as it is that the task needs.
    """

    id: str | None = None
    delay: float | None = None
    execute_time: float | str | None = None
    content: str | None = None
    callback: str | UnsetType | None = UNSET
    headers: dict[str, str] | None = None
    retry: int | None = None
    ttl: float | UnsetType | None = UNSET
    context: dict[str, str] | None = None
    durability: str | None = None

    @property
    def sets_due_time(self) -> bool:
        """True if the task becomes due at another time."""
        return self.delay is not None or self.execute_time is not None

    @property
    def sets_others(self) -> bool:
        """True if there is a change besides that of the callback."""
        changes = (self.delay, self.execute_time, self.content, self.headers, self.retry, self.context)
        return self.ttl is not UNSET or any(change is not None for change in changes)

    def require_any(self) -> None:
        """Raise Refused if there are no changes."""
        if self.callback is UNSET and not self.sets_others:
            fields = ", ".join(name for name in self.__struct_fields__ if name not in ("id", "durability"))
            raise Refused(f"expected something to change: {fields}; got none of these")


def changes_of(draft: Draft) -> TaskChanges:
    """Return the changes that a create asks for of the task that has its id. What it does not say stays."""
    return TaskChanges(
        id=draft.id,
        delay=draft.delay,
        execute_time=draft.execute_time,
        content=draft.content,
        callback=UNSET if draft.callback is None else draft.callback,
        headers=draft.headers,
        retry=draft.retry,
        ttl=UNSET if draft.ttl is None else draft.ttl,
        context=draft.context,
    )


def edit(task: Task, changes: TaskChanges, policies: Policies, now: int) -> Task:
    """Return the task with these changes, made at `now` (ms, the high end of the store's time).

    Raises:
        Refused: a field is wrong, as for a create.
        PolicyRefusal: the topic's policy does not allow it, or ignores a task's own delay. In `queue` mode, applying
            that delay would make the task due at once.
    """
    policy = policies.for_topic(task.topic)
    edited: dict[str, Any] = {}
    if changes.sets_due_time:
        if policy.delay_mode is DelayMode.QUEUE and not policy.default_delay_ms:
            field = "execute_time" if changes.delay is None else "delay"
            reason = "the topic's policy ignores a task's own (delay_mode queue)"
            raise PolicyRefusal(f"{field}: expected none, for {reason}", field)
        draft = Draft(delay=changes.delay, execute_time=changes.execute_time)
        edited["execute_at"] = resolve_execute_at(draft, policy, now)
    if changes.content is not None:
        edited["content"] = check_content(changes.content)
        edited["is_json"] = False
    is_none_left = changes.callback is None and changes.sets_others and not policy.may_lack_callbacks
    if changes.callback is not UNSET and not is_none_left:
        edited["callback"] = resolve_callback(changes.callback, policy)
    if changes.headers is not None:
        edited["headers"] = check_headers(changes.headers)
    if changes.context is not None:
        edited["context"] = check_context(changes.context)
    if changes.retry is not None:
        edited["max_retry"] = check_retry(changes.retry)
    if changes.ttl is not UNSET:
        ttl_ms = None if changes.ttl is None else resolve_ttl_ms(changes.ttl, policy)
        edited["expires_at"] = None if ttl_ms is None else task.ttl_starts_at + ttl_ms
    return msgspec.structs.replace(task, **edited)


def renew_ttl(task: Task, now: int) -> Task:
    """Return a dead task that is redriven or run now: its ttl, if it has one, counts from now."""
    if task.expires_at is None:
        return task
    return msgspec.structs.replace(task, expires_at=now + task.expires_at - task.ttl_starts_at, renewed_at=now)
