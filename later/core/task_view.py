"""A task in JSON, as answers and follow-up tasks show it: its fields, and how a record fills them."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from later.core.clock import rfc3339
from later.core.errors import UnreadableBody
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task

DEAD = "dead"
DONE = "done"


class StoredRecord(Protocol):
    """A task where it is stored. `task` is the error if its body cannot be decoded."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def task(self) -> Task | UnreadableBody: ...
    @property
    def state(self) -> str: ...
    @property
    def due_at(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...


class LastErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a task's last attempt."""

    reason: str
    status: int | None
    message: str
    at: str


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a task that was not done. `took_ms` is None if no call was made, or if that is not known."""

    attempt: int
    at: str
    reason: str
    status: int | None
    took_ms: int | None
    message: str


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
    due_at: str | UnsetType = UNSET
    died_at: str | UnsetType = UNSET
    done_at: str | UnsetType = UNSET
    attempts: int
    last_error: LastErrorView | None
    headers: list[str] | UnsetType = UNSET
    context: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    dead_letter: DeadLetterView | UnsetType = UNSET
    failures: list[FailureView] | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    """The level that a change has reached, in its answer."""


def task_view(record: StoredRecord) -> TaskView:
    """Return the view of a task for a query's answer."""
    view = listed_view(record)
    if view.last_error is None:
        return view
    return msgspec.structs.replace(view, failures=failure_views(record.failure, record.task))


def listed_view(record: StoredRecord) -> TaskView:
    """Return the view of a task in a listing: without its failures but the last."""
    return _view(record, record.state, record.due_at, record.failure)


def ended_view(record: StoredRecord, verdict: Verdict) -> TaskView:
    """Return the view of a task as it ends by a verdict: dead, as a query answers it then, or done."""
    failure = verdict.failure or record.failure
    view = _view(record, DEAD, verdict.at, failure)
    if verdict.target is SettleTarget.DEAD:
        return msgspec.structs.replace(view, failures=failure_views(failure, record.task))
    return msgspec.structs.replace(view, state=DONE, done_at=view.died_at, died_at=UNSET, last_error=None)


def _view(record: StoredRecord, state: str, at: int, failure: Failure | None) -> TaskView:
    """Return the view of a task in this state, in which it is due, or has died, `at` this time (ms)."""
    task = record.task if isinstance(record.task, Task) else None
    return TaskView(
        id=record.id,
        topic=record.topic,
        execute_time=execute_time_s(task),
        max_retry=None if task is None else task.max_retry,
        has_retry=retries_used(task, failure),
        callback=(task and task.callback) or None,
        content=None if task is None else task.content,
        creat_time=created_time_s(task),
        state=state,
        due_at=UNSET if state == DEAD else rfc3339(at),
        died_at=rfc3339(at) if state == DEAD else UNSET,
        attempts=record.attempts,
        last_error=last_error_view(failure, task),
        headers=UNSET if task is None or not task.headers else list(task.headers),
        context=UNSET if task is None or not task.context else list(task.context),
        expires_at=UNSET if task is None or task.expires_at is None else rfc3339(task.expires_at),
        dead_letter=UNSET if task is None else dead_letter_view(task),
    )


def execute_time_s(task: Task | None) -> int | None:
    """Return when a task was first meant to run, in whole Unix seconds, rounded up; None if it cannot be read."""
    return None if task is None else -(-task.execute_at // 1000)


def created_time_s(task: Task | None) -> int | None:
    """Return when a task was created, in whole Unix seconds; None if it cannot be read."""
    return None if task is None else task.created_at // 1000


def retries_used(task: Task | None, failure: Failure | None) -> int:
    """Return the number of retries used up: the failures so far, except the last, which no retry followed."""
    failures = failure.failures if failure else 0
    return failures if task is None else min(failures, task.max_retry)


def last_error_view(failure: Failure | None, task: Task | None) -> LastErrorView | None:
    """Return the view of a task's last failure, or None if no attempt has failed.

    In a dead-letter topic it is that of which the task died, until it fails there.
    """
    last = task.death if failure is None and task is not None else failure
    if last is None:
        return None
    return LastErrorView(reason=last.reason, status=last.status, message=last.message, at=rfc3339(last.at))


def failure_views(failure: Failure | None, task: Task | UnreadableBody | None) -> list[FailureView] | UnsetType:
    """Return views of the failures of a task that are kept, the oldest first; UNSET if no attempt has failed.

    In a dead-letter topic they are those of which it died, until it fails there.
    """
    failures = () if failure is None else failure.all
    if failure is None and isinstance(task, Task) and task.death is not None:
        failures = task.death.failures
    views = [
        FailureView(
            attempt=past.attempt,
            at=rfc3339(past.at),
            reason=past.reason,
            status=past.status,
            took_ms=past.took_ms,
            message=past.message,
        )
        for past in failures
    ]
    return views or UNSET


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
