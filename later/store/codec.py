"""Parsers of the answers of commands, and the records that they return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from later.core.errors import LaterError, StoreFault, UnreadableBody
from later.core.retry import Failure, decode_failure
from later.core.task import Task
from later.store.keys import Bucket, Shard
from later.store.types import TaskRecord

MAX_BODIES = 100
"""Bodies read in one round trip: each may be as large as a request."""
UNREAD = 0
"""The place of a body that a script has not read, because the others were large enough for one round trip."""

_BUCKETS = tuple(Bucket)


class StoredTask(NamedTuple):
    """A task as it was read from the pool by this name. `task` is the error if `raw` cannot be decoded."""

    name: str
    shard: Shard
    topic: bytes
    raw: bytes
    task: Task | UnreadableBody

    @property
    def has_ttl(self) -> bool:
        return isinstance(self.task, Task) and self.task.expires_at is not None


class TaskRow(msgspec.Struct):
    """The values that the script `query` returns for one id; None for a missing value. The scores are of one topic."""

    body: bytes | int | None
    """`UNREAD` if it was not read."""
    ended: bytes | None
    delay: bytes | None
    unack: bytes | None
    error: bytes | None
    dead: bytes | None
    attempts: bytes | None
    failure: bytes | None


def parse_rows(columns: Sequence[Sequence[bytes | None]]) -> list[TaskRow]:
    return list(map(TaskRow, *columns))


def build_record(id: str, topic: bytes, task: Task | UnreadableBody, row: TaskRow) -> TaskRecord | None:
    """Return the task's record; None if no bucket of the topic holds it."""
    for bucket, score in zip(_BUCKETS, (row.delay, row.unack, row.error, row.dead), strict=True):
        if score is not None:
            attempts, first_due_at = parse_attempts(row.attempts, bucket)
            failure = parse_failure(row.failure)
            return TaskRecord(id, topic.decode(), task, bucket, int(float(score)), attempts, failure, first_due_at)
    return None


def in_no_bucket(id: str) -> StoreFault:
    return StoreFault(f"task {id!r} is in no bucket: run `later doctor --repair`")


def parse_attempts(stored: bytes | None, bucket: Bucket) -> tuple[int, int | None]:
    """Return how many attempts have begun, and the first due time (ms) of a task that was put back, as in prelude.lua.

    A task that was put back is in delay. If its ttl ends there, it keeps that time, which then means nothing.
    """
    if not stored:
        return 0, None
    begun, _, rest = stored.partition(b" ")
    is_first_due = bucket is Bucket.DELAY and rest.startswith(b"0") and rest != b"0"  # 0 alone: it was forgotten
    return int(begun), int(rest) if is_first_due else None


def parse_failure(stored: bytes | None) -> Failure | None:
    return decode_failure(stored) if stored else None


def parse_time(stored: bytes) -> int | None:
    return int(float(stored)) if stored else None


def raise_errors(answers: list[Any]) -> list[Any]:
    """Return the answers if none of them is an error; raise the first error otherwise."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers


def pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Return the pairs in a flat list: member and score, or name and value."""
    return zip(flat[::2], flat[1::2], strict=True)
