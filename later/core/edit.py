"""What an edit makes of a task that waits: a pure decision, by the rules and in the words of a create."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from later.core.admit import check_content, resolve_execute_at, resolve_max_retry, resolve_ttl_ms
from later.core.errors import Refused
from later.core.policy import DelayMode, Policy
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.core.validation import check_callback, check_headers


class TaskChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to become of the task `id`: fields as they came, None where one stays; units are those of a `Draft`.

    A ttl of None is a wish too: the task is not to age any more.
    """

    id: str | None = None
    delay: float | None = None
    execute_time: float | None = None
    content: str | None = None
    callback: str | None = None
    headers: dict[str, str] | None = None
    retry: int | None = None
    ttl: float | UnsetType | None = UNSET

    @property
    def sets_due_time(self) -> bool:
        """Is it to be due at another time?"""
        return self.delay is not None or self.execute_time is not None

    def require_any(self) -> None:
        """Raises Refused: there is nothing that would change."""
        if all(getattr(self, name) in (None, UNSET) for name in _FIELDS) and self.ttl is UNSET:
            raise Refused(f"expected something to change: {', '.join(_FIELDS)}; got none of these")


_FIELDS = [name for name in TaskChanges.__struct_fields__ if name != "id"]


def edit(task: Task, changes: TaskChanges, policies: Policies, now: int) -> Task:
    """The task with these changes, made at `now` (ms, the high end of the store's time), by its topic's policy.

    Raises:
        Refused: as for a create.
    """
    policy = policies.for_topic(task.topic)
    edited = task
    if changes.sets_due_time:
        _check_heeded(changes, policy)
        draft = Draft(delay=changes.delay, execute_time=changes.execute_time)
        edited = msgspec.structs.replace(edited, execute_at=resolve_execute_at(draft, policy, now))
    if changes.content is not None:
        edited = msgspec.structs.replace(edited, content=check_content(changes.content))
    if changes.callback is not None:
        edited = msgspec.structs.replace(edited, callback=check_callback(changes.callback))
    if changes.headers is not None:
        edited = msgspec.structs.replace(edited, headers=check_headers(changes.headers))
    if changes.retry is not None:
        edited = msgspec.structs.replace(edited, max_retry=resolve_max_retry(changes.retry, policy))
    if changes.ttl is not UNSET:
        ttl_ms = None if changes.ttl is None else resolve_ttl_ms(changes.ttl, policy)
        edited = msgspec.structs.replace(edited, expires_at=None if ttl_ms is None else task.ttl_starts_at + ttl_ms)
    return edited


def _check_heeded(changes: TaskChanges, policy: Policy) -> None:
    """Or whoever puts a task off would set it off: a delay that is ignored is due now.

    Raises:
        Refused: the topic ignores a task's own delay.
    """
    if policy.delay_mode is DelayMode.QUEUE and not policy.default_delay_ms:
        field = "execute_time" if changes.delay is None else "delay"
        raise Refused(f"{field}: expected none, for the topic's policy ignores a task's own (delay_mode queue)", field)


def renew_ttl(task: Task, now: int) -> Task:
    """The task as it is brought back from the dead: its ttl counts from now."""
    if task.expires_at is None:
        return task
    return msgspec.structs.replace(task, expires_at=now + task.expires_at - task.ttl_starts_at, renewed_at=now)
