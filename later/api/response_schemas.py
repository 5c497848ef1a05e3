"""Schemas of answers about tasks, and the functions that fill them from the store's records."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from later.api.problems import ErrorBody
from later.core.admit import expiry_warning
from later.core.clock import rfc3339
from later.core.lease import encode_lease
from later.core.task import Task, headers_of_claim
from later.core.task_view import DeadLetterView, LastErrorView, dead_letter_view, last_error_view
from later.store.pull_plan import PulledTask
from later.store.types import CreateResult, Deletion


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a create. `due_at` is that of the task that is there now, and absent if it is dead or has ended.

    `updated` is true if that task was there before, and was edited. `durability` is the level that was reached,
    and left out if only `primary` was asked for.
    """

    id: str
    due_at: str | UnsetType = UNSET
    created: bool | UnsetType = UNSET
    updated: bool | UnsetType = UNSET
    warning: str | UnsetType = UNSET
    durability: str | UnsetType = UNSET


class DeleteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a delete. `in_flight` and `ended` are as in `Deletion`, and left out if they are false.

    `durability` is as in `CreateResponse`.
    """

    id: str
    in_flight: bool | UnsetType = UNSET
    ended: bool | UnsetType = UNSET
    durability: str | UnsetType = UNSET


class ListResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, each a `TaskView` that is encoded already. `cursor` is None on the last page."""

    tasks: list[msgspec.Raw]
    cursor: str | None


class BatchItemError(msgspec.Struct, frozen=True):
    """The result of an item that was refused or failed."""

    error: ErrorBody


class StoredItemError(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an item that was carried out, but has not reached its durability in time.

    `created` is that of a create.
    """

    id: str
    created: bool | UnsetType = UNSET
    error: ErrorBody


class BatchCreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/create/batch`. `failed` counts items that could not be stored now, or not as durably as asked.

    `updated` counts those of the existing tasks that were edited, and is left out if there are none. `durability` is
    the highest level that was asked for and reached; it is left out if that is `primary`.
    """

    created: int
    existing: int
    updated: int | UnsetType = UNSET
    refused: int
    failed: int
    durability: str | UnsetType = UNSET
    results: list[CreateResponse | BatchItemError | StoredItemError]


class BatchQueryResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/query/batch`. `left_out` counts tasks that do not fit in the answer: they are asked for again.

    A result is a `TaskView`, encoded already, or an error.
    """

    found: int
    missing: int
    refused: int
    failed: int
    left_out: int | UnsetType = UNSET
    results: list[msgspec.Raw | BatchItemError]


class BatchDeleteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/delete/batch`.

    `in_flight` counts those of the deleted tasks that were in flight, `ended` the ids of ended tasks that were
    forgotten. With `pending`, `kept` counts dead tasks, which are not deleted. `durability` is as for creates.
    """

    deleted: int
    in_flight: int
    ended: int
    missing: int
    kept: int | UnsetType = UNSET
    refused: int
    failed: int
    durability: str | UnsetType = UNSET
    results: list[DeleteResponse | BatchItemError | StoredItemError]


class MovedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was made due, in the answer for several."""

    id: str
    due_at: str


class MovedTasksResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/run-now` and `/redrive` with `ids`. An id that stands twice is counted once.

    `refused` counts ids that are none, and tasks whose state does not allow it, but those in flight; `failed` tasks of
    which that is not known now. `durability` is as for creates in a batch.
    """

    moved: int
    missing: int
    refused: int
    in_flight: int
    failed: int
    durability: str | UnsetType = UNSET
    results: list[MovedTask | BatchItemError | StoredItemError]


class JobResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a bulk job, or of one `run` of it."""

    job: str
    run: str | UnsetType = UNSET
    created: int
    existing: int
    refused: int


class ListedJobView(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk job in a list: its counts, and when they are forgotten unless further tasks are counted."""

    job: str
    created: int
    existing: int
    refused: int
    forgotten_at: str


class JobsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Bulk jobs, the one that is forgotten last first, and the cursor of the next page; None if there is none."""

    jobs: list[ListedJobView]
    cursor: str | None


class ClaimedTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a consumer has claimed, and its lease. `context` is None if it has none.

    `callback` is that of a task that has one: it died in a pushed topic, or its topic was pushed when it was created.
    """

    id: str
    topic: str
    content: str
    headers: dict[str, str]
    attempt: int
    due_at: str
    created_at: str
    last_error: LastErrorView | None
    failures: int
    max_retry: int
    context: dict[str, str] | None
    lease: str
    lease_until: str
    callback: str | UnsetType = UNSET
    dead_letter: DeadLetterView | UnsetType = UNSET


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/claim`. `lost` are those leases of `done` and `failed` that were not in force any more."""

    tasks: list[ClaimedTaskView]
    lost: list[str]


class AckResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/ack`."""

    acked: int
    lost: list[str]


class NackResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/nack`."""

    nacked: int
    lost: list[str]


class ReleaseResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/release`."""

    released: int
    lost: list[str]


class ExtendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/extend`."""

    extended: int
    lost: list[str]


def due_time(task: Task, result: CreateResult) -> str | UnsetType:
    """Return when a task is due that was created, or that exists under its id; UNSET if that is dead or has ended."""
    due_at = task.execute_at if result is True else result.due_at
    return UNSET if due_at is None else rfc3339(due_at)


def created_warning(task: Task, created: bool) -> str | UnsetType:
    """Return a warning if a task was created that expires before it is due, otherwise UNSET."""
    return (expiry_warning(task) if created else None) or UNSET


def claimed_task_view(pulled: PulledTask) -> ClaimedTaskView:
    """Return the view of a task for the consumer that has claimed it."""
    task, failure = pulled.task, pulled.failure
    return ClaimedTaskView(
        id=task.id,
        topic=task.topic,
        content=task.content,
        headers=headers_of_claim(task),
        attempt=pulled.attempt,
        due_at=rfc3339(pulled.due_at),
        created_at=rfc3339(task.created_at),
        last_error=last_error_view(failure, task),
        failures=0 if failure is None else failure.failures,
        max_retry=task.max_retry,
        context=task.context,
        lease=encode_lease(pulled.lease),
        lease_until=rfc3339(pulled.lease_end),
        callback=task.callback or UNSET,
        dead_letter=dead_letter_view(task),
    )


def deletion_view(deletion: Deletion, durability: str | UnsetType = UNSET) -> DeleteResponse:
    """Return the view of a deletion: what the task was when it was deleted, and the level that was reached."""
    return DeleteResponse(
        id=deletion.id,
        in_flight=deletion.in_flight or UNSET,
        ended=deletion.ended or UNSET,
        durability=durability,
    )
