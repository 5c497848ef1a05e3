"""The choice of a create whose id exists: keep the task that is there, edit it, or fail."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from later.core.clock import rfc3339
from later.core.edit import TaskChanges, changes_of
from later.core.errors import Exists
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.core.validation import refusal


class IfExists(StrEnum):
    """The values of a create's field `if_exists`."""

    KEEP = "keep"
    UPDATE = "update"
    ERROR = "error"


class Upsert(NamedTuple):
    """A create that edits the task of its id if it waits, and takes its place if it is dead or has ended.

    `changes` are the fields that the caller gives, for an edit by the rules of `policies`.
    """

    task: Task
    changes: TaskChanges
    policies: Policies


class ExclusiveCreate(NamedTuple):
    """A create that fails if its id exists."""

    task: Task


Creation = Task | Upsert | ExclusiveCreate
"""A create that was admitted. A task alone is one that keeps what is there."""


def creation_of(draft: Draft, task: Task, policies: Policies, *, in_job: bool = False) -> Creation:
    """Return the create that a draft asks for, which was admitted as `task`. One of a bulk job keeps what is there.

    Raises:
        Refused: `if_exists` is wrong, or not for this create.
    """
    if draft.if_exists is None or draft.if_exists == IfExists.KEEP:
        return task
    if draft.if_exists not in (IfExists.UPDATE, IfExists.ERROR):
        raise refusal("if_exists", draft.if_exists)
    if draft.id is None:
        expected = f'"{IfExists.KEEP}", or an id of your own with it'
        raise refusal("if_exists", draft.if_exists, expected)
    if in_job:
        expected = f'"{IfExists.KEEP}", because a bulk job counts each of its tasks once'
        raise refusal("if_exists", draft.if_exists, expected)
    if draft.if_exists == IfExists.ERROR:
        return ExclusiveCreate(task)
    return Upsert(task, changes_of(draft), policies)


def task_of(creation: Creation) -> Task:
    """Return the task that is created, unless its id exists."""
    return creation if isinstance(creation, Task) else creation.task


def id_exists(task: Task, due_at: int | None) -> Exists:
    """Return the error of an exclusive create; `due_at` (ms) is when the task that is there is due."""
    if due_at is None:
        return Exists(f"the id {task.id!r} exists: its task is dead, or has ended and the id is remembered")
    return Exists(f"the id {task.id!r} exists: its task is due at {rfc3339(due_at)}")
