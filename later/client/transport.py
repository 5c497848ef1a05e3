"""The two ways to `later`: its API, by which executors need no store and no password; or the store itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from later.client.http import AGAIN
from later.core.errors import LaterError


class ItemError(NamedTuple):
    """What went wrong with one item: an HTTP status, the field that is wrong, if one is, and the reason."""

    status: int
    field: str | None
    reason: str

    @property
    def may_pass(self) -> bool:
        return self.status in AGAIN


class BatchResult(NamedTuple):
    """What tasks sent in one batch came to; what is wrong with others, by their position."""

    created: int
    existing: int
    wrong: Mapping[int, ItemError]


class TaskStatus(StrEnum):
    """Where the task of a row is."""

    PENDING = "pending"
    DEAD = "dead"
    ENDED = "ended"
    MISSING = "missing"


class Counts(NamedTuple):
    """What a job has come to, as the store has counted it."""

    created: int = 0
    existing: int = 0
    refused: int = 0


class Unavailable(LaterError):
    """Nobody answered, or nobody can know what came of it; the same may be tried again after `again_ms`."""

    def __init__(self, reason: str, again_ms: int | None = None) -> None:
        super().__init__(reason)
        self.again_ms = again_ms


class Transport(Protocol):
    """Access to `later` for one job.

    Each method raises `Unavailable` if the same call may work later, another `LaterError` if it will not.
    """

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        """Create tasks of these bodies of `/create`, counted into the transport's job."""

    def judge(self, bodies: Sequence[bytes]) -> BatchResult:
        """What `create` would refuse; nothing is created, and none of the others is counted as created."""

    def find(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        """Where tasks are."""

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        """Delete tasks that are pending; where each was. What is dead or has ended stays as it is."""

    def counts(self) -> Counts:
        """What the transport's job has come to."""

    def close(self) -> None: ...
