"""Parsers of the answers of commands, and the records that they return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from later.core.errors import LaterError, StoreFault, UnreadableBody
from later.core.held import Held
from later.core.retry import Failure, decode_failure
from later.core.task import Task
from later.store.keys import Bucket, Shard
from later.store.types import TaskRecord

MAX_BODIES = 100
"""Bodies read in one round trip: each may be as large as a request."""
UNREAD = 0
"""The place of a body that a script has not read, because the others were large enough for one round trip."""

_BUCKETS = tuple(Bucket)
NO_LEASE = (0, "")
"""What `parse_lease` returns of a task that is not in flight."""


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
            attempts, first_due_at, reason = parse_attempts(row.attempts, bucket)
            failure, at = parse_failure(row.failure), int(float(score))
            lease = parse_lease(row.attempts) if bucket is Bucket.UNACK else NO_LEASE
            return TaskRecord(id, topic.decode(), task, bucket, at, attempts, failure, first_due_at, reason, *lease)
    return None


def in_no_bucket(id: str) -> StoreFault:
    return StoreFault(f"task {id!r} is in no bucket: run `later doctor --repair`")


def parse_attempts(stored: bytes | None, bucket: Bucket) -> tuple[int, int | None, Held | None]:
    """Return how many attempts have begun; of a task that was put back, its first due time and why. As in prelude.lua.

    A task that was put back is in delay. If its ttl ends there, it keeps that time, which then means nothing.
    """
    if not stored:
        return 0, None, None
    begun, _, rest = stored.partition(b" ")
    if bucket is not Bucket.DELAY or not rest.startswith(b"0") or rest == b"0":  # 0 alone: it was forgotten
        return int(begun), None, None
    return int(begun), int(rest), parse_put_back(rest)


def parse_lease(stored: bytes | None) -> tuple[int, str]:
    """Return the fence of a task in flight, and the id of the record under which it was claimed. As in prelude.lua."""
    _, fence, claim_id = [*(stored or b"").split(b" "), b"", b"", b""][:3]
    return int(fence) if fence.isdigit() else 0, claim_id.decode("ascii", "replace")


def parse_put_back(first_due: bytes) -> Held:
    """Return why a task was put back, from its first due time in the form of prelude.lua."""
    return Held.FAULT if first_due.startswith(b"00") else Held.ORIGIN


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
