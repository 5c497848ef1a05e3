"""What scripts take and answer: strings there, records here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from later.core.errors import LaterError, NotFound, StoreFault, UnreadableBody
from later.core.retry import Failure, SettleTarget, decode_failure, encode_failure
from later.core.task import Task, decode, pack_id, unpack_id
from later.store.keys import Bucket, Shard
from later.store.scripts import Argument
from later.store.types import Claim, ClaimRequest, ClaimResult, Settlement, TaskRecord

MAX_BODIES = 100
"""How many bodies are read in one round trip: each may be as large as a request."""


class StoredTask(NamedTuple):
    """A task as the pool had it when it was read."""

    id: str
    shard: Shard
    topic: bytes
    raw: bytes
    task: Task | UnreadableBody

    @property
    def has_ttl(self) -> bool:
        """Has it a ttl?"""
        return isinstance(self.task, Task) and self.task.expires_at is not None


def unwrap(read: StoredTask | LaterError) -> StoredTask:
    """What was read. Raises LaterError: it is none."""
    if isinstance(read, LaterError):
        raise read
    return read


class TaskRow(NamedTuple):
    """What a query's script answers of one id: None where there is nothing. The scores are those of one topic."""

    body: bytes | None
    ended: bytes | None
    delay: bytes | None
    unack: bytes | None
    error: bytes | None
    dead: bytes | None
    attempts: bytes | None
    failure: bytes | None


def parse_rows(columns: Sequence[Sequence[bytes | None]]) -> list[TaskRow]:
    return list(map(TaskRow, *columns))


def answers_by_first_occurrence(ids: Sequence[str], answers: Sequence[str | LaterError]) -> list[str | LaterError]:
    """The answers to a delete: an id that stands there again is not there any more."""
    first = {id: place for place, id in reversed(list(enumerate(ids)))}
    return [answers[place] if first[id] == place else NotFound(id) for place, id in enumerate(ids)]


def settle_arguments(settlement: Settlement) -> list[Argument]:
    claim, verdict, remember_until = settlement
    time: int | str = verdict.at
    if verdict.target is SettleTarget.DONE:
        time = "" if remember_until is None else remember_until
    failure = b"" if verdict.failure is None else encode_failure(verdict.failure)
    ageing = isinstance(claim.task, Task) and claim.task.expires_at is not None
    return [pack_id(claim.id), claim.fence, verdict.target.value, time, failure, int(ageing)]


def parse_claims(want: ClaimRequest, answer: list[Any], lease_end: int) -> ClaimResult:
    wake_at, strays, *entries = answer
    claims = [_claim_of(want, entry, lease_end + want.lease_extra_ms) for entry in entries]
    return ClaimResult(parse_time(wake_at), strays, claims)


def _claim_of(want: ClaimRequest, entry: list[Any], lease_end: int) -> Claim:
    packed, raw, due_at, attempt, fence, failure = entry
    id = unpack_id(packed)
    return Claim(
        id,
        want.topic,
        want.shard,
        decode_task(id, raw),
        int(float(due_at)),
        attempt,
        fence,
        parse_failure(failure),
        lease_end,
    )


def build_record(id: str, topic: bytes, task: Task | UnreadableBody, row: TaskRow) -> TaskRecord | None:
    """None where no bucket of the topic has it."""
    for bucket, score in zip(_BUCKETS, row[2:6], strict=True):
        if score is not None:
            begun = int(row.attempts.split()[0]) if row.attempts else 0
            return TaskRecord(id, topic.decode(), task, bucket, int(float(score)), begun, parse_failure(row.failure))
    return None


def in_no_bucket(id: str) -> StoreFault:
    return StoreFault(f"task {id!r} is in no bucket: run `later doctor --repair`")


_BUCKETS = tuple(Bucket)


def decode_task(id: str, raw: bytes) -> Task | UnreadableBody:
    try:
        return decode(id, raw)
    except UnreadableBody as error:
        return error


def parse_failure(stored: bytes | None) -> Failure | None:
    return decode_failure(stored) if stored else None


def parse_time(stored: bytes) -> int | None:
    return int(float(stored)) if stored else None


def earliest_score(ranges: Iterable[Sequence[bytes]]) -> int | None:
    """The earliest score of ranges with scores; None where all are empty."""
    return min((int(float(found[1])) for found in ranges if found), default=None)


def raise_errors(answers: list[Any]) -> list[Any]:
    """Return the answers if none of them is an error; raise the first one otherwise."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers


def as_bools(answers: list[Any]) -> list[bool | LaterError]:
    return [answer if isinstance(answer, LaterError) else answer == 1 for answer in answers]


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
