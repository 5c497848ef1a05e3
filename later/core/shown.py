"""What is shown of a task, to whoever asks for one and to whoever exports them all: its figures in their units."""

from __future__ import annotations

from later.core.errors import UnreadableBody
from later.core.retry import Failure
from later.core.task import Task


def execute_time(task: Task) -> int:
    """When it was first meant to run, in whole Unix seconds, rounded up."""
    return -(-task.execute_at // 1000)


def creat_time(task: Task) -> int:
    """When it was created, in whole Unix seconds."""
    return task.created_at // 1000


def has_retry(task: Task | UnreadableBody, failure: Failure | None) -> int:
    """How many of its retries it has used up: its failures so far, but the last one was followed by none."""
    failures = failure.failures if failure else 0
    return min(failures, task.max_retry) if isinstance(task, Task) else failures
