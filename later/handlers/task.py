"""The task that a handler is called for, as its author sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from later.core.task import SCHEDULED_HEADER

State = TypeVar("State")


class Deadline(Protocol):
    """The time by which an attempt must have ended: that of the call over HTTP, or the end of a consumer's lease."""

    def time_left(self) -> float:
        """Return the seconds that are left; negative ones if the time has passed."""
        ...

    async def extend(self) -> None:
        """Move the end of the lease.

        Raises:
            LeaseLost: the lease has ended.
            RuntimeError: the task came over HTTP, where nothing can be extended.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Task(Generic[State]):
    """A task and its present attempt. Times have their zone (UTC).

    `created_at`, `failures` and `retries_left` are None where the daemon does not say them. `context` are the values
    that were carried over from the creator; `headers` are those of the call, by their names in lower case. `state` is
    what the application's lifespan returned.
    """

    id: str
    topic: str
    attempt: int
    due_at: datetime
    created_at: datetime | None = None
    failures: int | None = None
    retries_left: int | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: State = field(default=None, repr=False)  # type: ignore[assignment]  # an application without a lifespan has none
    deadline: Deadline = field(repr=False)

    @property
    def scheduled_at(self) -> datetime | None:
        """The time of its schedule for which the task was created; None if no schedule created it."""
        try:
            return datetime.fromisoformat(self.headers[SCHEDULED_HEADER]).astimezone(UTC)
        except (KeyError, ValueError, OverflowError):
            return None

    @property
    def lateness(self) -> timedelta | None:
        """How long after that time the task was created: more than moments if the schedule missed its time."""
        if self.scheduled_at is None or self.created_at is None:
            return None
        return max(self.created_at - self.scheduled_at, timedelta())

    def time_left(self) -> float:
        """Return the seconds until the attempt must have ended; later then makes the next one."""
        return self.deadline.time_left()

    async def extend(self) -> None:
        """Move the end of a consumer's lease; a worker does it by itself while the handler runs.

        Raises:
            LeaseLost: the lease has ended: the task may be with another consumer.
            RuntimeError: the task came over HTTP, where nothing can be extended.
        """
        await self.deadline.extend()


_current: ContextVar[Task[Any] | None] = ContextVar("later_task", default=None)


def current() -> Task[Any] | None:
    """Return the task whose handler runs in this context, also in its threads; None outside of handlers."""
    return _current.get()


set_current = _current.set
reset_current = _current.reset
