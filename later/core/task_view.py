"""A task in JSON, as answers and follow-up tasks show it: its fields, and how a record fills them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from later.core.clock import rfc3339
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import TaskRecord


class LastErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a task's last attempt."""

    reason: str
    status: int | None
    message: str
    at: str


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """The death of a task in another topic, from which it moved to its present one."""

    topic: str
    reason: str
    status: int | None
    message: str
    at: str
    attempts: int


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task in an answer, its fields in the contract's order.

    Fields of a task whose body cannot be read are None. Fields that are UNSET are left out.
    """

    id: str
    topic: str
    execute_time: int | None = None
    max_retry: int | None = None
    has_retry: int
    callback: str | None = None
    content: str | None = None
    creat_time: int | None = None
    state: str
    due_at: str | UnsetType
    died_at: str | UnsetType
    done_at: str | UnsetType = UNSET
    attempts: int
    last_error: LastErrorView | None
    headers: list[str] | UnsetType = UNSET
    context: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    dead_letter: DeadLetterView | UnsetType = UNSET


def task_view(record: TaskRecord) -> TaskView:
    """Return the view of a task for a query's answer."""
    task = record.task if isinstance(record.task, Task) else None
    is_dead, score_time = record.state is Bucket.DEAD, rfc3339(record.due_at)
    return TaskView(
        id=record.id,
        topic=record.topic,
        execute_time=record.execute_time_s,
        max_retry=None if task is None else task.max_retry,
        has_retry=record.retries_used,
        callback=(task and task.callback) or None,
        content=None if task is None else task.content,
        creat_time=record.created_time_s,
        state=record.state.value,
        due_at=UNSET if is_dead else score_time,
        died_at=score_time if is_dead else UNSET,
        attempts=record.attempts,
        last_error=last_error_view(record.failure, task),
        headers=UNSET if task is None or not task.headers else list(task.headers),
        context=UNSET if task is None or not task.context else list(task.context),
        expires_at=UNSET if task is None or task.expires_at is None else rfc3339(task.expires_at),
        dead_letter=UNSET if task is None else dead_letter_view(task),
    )


def ended_view(record: TaskRecord, verdict: Verdict) -> TaskView:
    """Return the view of a task as it ends by a verdict: dead, as a query answers it then, or done."""
    failure = verdict.failure or record.failure
    ended = msgspec.structs.replace(record, state=Bucket.DEAD, score=verdict.at, failure=failure, first_due_at=None)
    view = task_view(ended)
    if verdict.target is SettleTarget.DEAD:
        return view
    return msgspec.structs.replace(view, state="done", done_at=view.died_at, died_at=UNSET, last_error=None)


def last_error_view(failure: Failure | None, task: Task | None) -> LastErrorView | None:
    """Return the view of a task's last failure, or None if no attempt has failed.

    In a dead-letter topic it is that of which the task died, until it fails there.
    """
    last = task.death if failure is None and task is not None else failure
    if last is None:
        return None
    return LastErrorView(reason=last.reason, status=last.status, message=last.message, at=rfc3339(last.at))


def dead_letter_view(task: Task) -> DeadLetterView | UnsetType:
    """Return the view of a task's death in the topic from which it moved to its present one; UNSET if it did not."""
    death = task.death
    if death is None:
        return UNSET
    return DeadLetterView(
        topic=death.topic,
        reason=death.reason,
        status=death.status,
        message=death.message,
        at=rfc3339(death.at),
        attempts=death.attempts,
    )
