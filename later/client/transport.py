"""The interface by which a batch sender reaches `later`: its HTTP API, or its store itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from later.client.http import RETRYABLE_STATUSES
from later.core.errors import Refused, TooLarge

TOO_LARGE = 413
"""The status of a call whose body a proxy on the way does not accept, and of a single body that is too large."""


class ItemError(NamedTuple):
    """An error of one item of a batch: an HTTP status, the field at fault if there is one, and the reason."""

    status: int
    field: str | None
    reason: str

    @property
    def is_retryable(self) -> bool:
        return self.status in RETRYABLE_STATUSES

    @property
    def refusal(self) -> Refused:
        """The error as the daemon raised it."""
        return (TooLarge if self.status == TOO_LARGE else Refused)(self.reason, self.field)


class BatchResult(NamedTuple):
    """The result of one batch: the number of created tasks, the positions of existing ones, and errors by position."""

    created: int
    existing: Sequence[int]
    errors: Mapping[int, ItemError]

    def at(self, positions: Sequence[int]) -> BatchResult:
        """Return the same result with each position p replaced by `positions[p]`."""
        errors = {positions[p]: error for p, error in self.errors.items()}
        return BatchResult(self.created, [positions[p] for p in self.existing], errors)


class TaskStatus(StrEnum):
    """The status of a row's task. Only a task that was deleted while it was in flight is IN_FLIGHT."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DEAD = "dead"
    ENDED = "ended"
    MISSING = "missing"


class CreateCounts(NamedTuple):
    """The numbers of tasks of a job, or of one run of it, as the store has counted them."""

    created: int = 0
    existing: int = 0
    refused: int = 0


class Transport(Protocol):
    """Access to `later` for one job, or for one run of it.

    Each method raises `Unavailable` if the same call may work later, another `LaterError` if it will not.
    """

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        """Create the tasks that these bodies of `/create` describe, and count them into the job and its run.

        Raises:
            CallFailed: Status TOO_LARGE: several bodies are too large for one call.
        """

    def validate(self, bodies: Sequence[bytes]) -> BatchResult:
        """Return the errors that `create` would give. It creates and counts nothing. Raises as `create` does."""

    def query(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        """Return the status of each task."""

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        """Delete pending tasks and return the status that each had. Dead and ended tasks stay as they are.

        The attempt of a task that was IN_FLIGHT is not recalled: its receiver may still get it.
        """

    def counts(self) -> CreateCounts:
        """Return the counts of the run, or of the job if the transport is for no run."""

    def close(self) -> None: ...
