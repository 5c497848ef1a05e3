"""Tasks for tests of handlers, and a deadline that does not move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from later.handlers.task import Task


class FixedDeadline:
    """A deadline of so many seconds; `extended` counts how often it was to be moved."""

    def __init__(self, seconds: float = 15) -> None:
        self.seconds = seconds
        self.extended = 0

    def time_left(self) -> float:
        return self.seconds

    async def extend(self) -> None:
        self.extended += 1


def task_of(topic: str, **fields: Any) -> Task[Any]:
    """Return a task of a topic, in its first attempt."""
    defaults = {"id": "t1", "attempt": 1, "due_at": datetime(2026, 11, 23, tzinfo=UTC), "deadline": FixedDeadline()}
    return Task(topic=topic, **{**defaults, **fields})
