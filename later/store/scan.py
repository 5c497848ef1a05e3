"""Scans of the store, or of a large part of it, in splits that any number of readers may read at once.

A split lies in one topic's bucket in one shard, between two positions of that bucket's order: by score, then by packed
id. The order is total and a position keeps its meaning whatever comes and goes, so a task that stays where it is, is
in one split and is read once. A task that moves during the scan may be returned twice (old and new position) or not at
all (it moved to a position that was already scanned).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from later.core.task import decode_task_or_error, unpack_id
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import MAX_BODIES, NO_LEASE, pairs, parse_attempts, parse_failure, parse_lease
from later.store.fanout import split_by_weight
from later.store.keys import Bucket, Keys
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.stats import Stats
from later.store.types import TaskRecord

MAX_BYTES = 256 * 1024
"""Bytes of bodies in one answer, about: large ones must not keep the store from its other clients."""
MAX_SPLITS = 100
"""Splits that one call makes."""
BUCKETS_AT_ONCE = 100
"""Buckets that are split in one round trip."""


class Position(NamedTuple):
    """A position in a bucket's order: the place of an entry, which need not exist."""

    score: int
    packed: bytes


class ScanRange(NamedTuple):
    """Tasks of one topic (None: of all) in some buckets: scores (ms) from `since` on and below `before` (None: any)."""

    topic: str | None
    buckets: Sequence[Bucket]
    since: int | None = None
    before: int | None = None


class ScanSplit(NamedTuple):
    """A part of a range: the tasks after one position, up to another, in one topic's bucket in one shard.

    `tasks` is about how many there were when the split was made.
    """

    topic: str
    bucket: Bucket
    shard: int
    since: int | None
    before: int | None
    after: Position | None = None
    up_to: Position | None = None
    tasks: int = 0


class Scanner:
    """Splits ranges and reads splits. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def split(self, scan_range: ScanRange, size: int) -> list[ScanSplit]:
        """Split a range into splits of about `size` tasks at most, ordered by topic, bucket, shard and position."""
        whole_buckets = await self._whole_buckets(scan_range)
        splits: list[ScanSplit] = []
        for start in range(0, len(whole_buckets), BUCKETS_AT_ONCE):
            left = whole_buckets[start : start + BUCKETS_AT_ONCE]
            while left:
                commands: list[Command] = []
                for whole in left:
                    key = self._keys.shards[whole.shard].bucket(whole.bucket, whole.topic.encode())
                    commands.append(scripts.SPLIT.call([key], [*_bounds(whole), size, MAX_SPLITS]))
                answers = await self._client.execute_all("split", commands)
                next_left: list[ScanSplit] = []
                for whole, answer in zip(left, answers, strict=True):
                    made, rest = _parse_splits(whole, size, answer)
                    splits += made
                    if len(made) == MAX_SPLITS:
                        next_left.append(rest)
                    elif rest.tasks:
                        splits.append(rest)
                left = next_left
        order = {bucket: index for index, bucket in enumerate(Bucket)}
        return sorted(splits, key=lambda split: (split.topic, order[split.bucket], split.shard, split.after or ()))

    async def read(self, splits: Iterable[ScanSplit]) -> AsyncIterator[list[TaskRecord]]:
        """Yield the splits' tasks, some at a time, each as it was when it was read."""
        for batch in batch_splits(splits, MAX_BODIES):
            left = batch
            while left:
                share = MAX_BODIES // len(left)
                commands: list[Command] = []
                for split in left:
                    shard = self._keys.shards[split.shard]
                    limit = max(min(split.tasks, MAX_TASKS), share)  # those expected, or an equal share
                    keys = [shard.bucket(split.bucket, split.topic.encode()), shard.pool, shard.attempts, shard.outcome]
                    bounds = [*_bounds(split), *(split.up_to or ("", b""))]
                    commands.append(scripts.READ.call(keys, [*bounds, limit, MAX_BYTES]))
                answers = await self._client.execute_all("read", commands)
                records: list[TaskRecord] = []
                next_left: list[ScanSplit] = []
                for split, (more, entries, *rows) in zip(left, answers, strict=True):
                    records += _parse_records(split, entries, rows)
                    if more:
                        packed, score = entries[-2:]
                        tasks_left = max(split.tasks - len(entries) // 2, 0)
                        next_left.append(split._replace(after=Position(int(float(score)), packed), tasks=tasks_left))
                yield records
                left = next_left

    async def _whole_buckets(self, scan_range: ScanRange) -> list[ScanSplit]:
        """Return a split for each bucket that may have tasks of the range."""
        topic, wanted, since, before = scan_range
        if topic is not None:
            buckets = {(topic, bucket, shard.index) for bucket in wanted for shard in self._keys.shards}
        else:
            found = Stats(self._client, self._keys).topics_by_bucket()
            buckets = {
                (name.decode(), bucket, shard.index)
                async for shard, bucket, names in found
                for name in names
                if bucket in wanted
            }
        return [ScanSplit(*bucket, since, before) for bucket in buckets]


def batch_splits(splits: Iterable[ScanSplit], tasks: int) -> Iterator[list[ScanSplit]]:
    """Yield the splits in order, in lists that hold no more than so many tasks together, or of one split."""
    return split_by_weight(splits, tasks, lambda split: split.tasks)


def _bounds(split: ScanSplit) -> list[Argument]:
    since, before = split.since, split.before
    return ["-inf" if since is None else since, "+inf" if before is None else before, *(split.after or ("", b""))]


def _parse_splits(whole: ScanSplit, size: int, answer: Sequence[Any]) -> tuple[list[ScanSplit], ScanSplit]:
    """Return the splits that one call has made, and the rest of the bucket."""
    tasks, *positions = answer
    made: list[ScanSplit] = []
    rest = whole._replace(tasks=tasks)
    for score, packed in pairs(positions):
        position = Position(int(float(score)), packed)
        made.append(rest._replace(up_to=position, tasks=size))
        rest = rest._replace(after=position, tasks=rest.tasks - size)
    return made, rest


def _parse_records(split: ScanSplit, entries: Sequence[bytes], rows: Sequence[Any]) -> list[TaskRecord]:
    """Return the tasks that were read, without entries that have no body."""
    records: list[TaskRecord] = []
    for (packed, score), raw, attempts, failure in zip(pairs(entries), *rows, strict=True):
        if raw is not None:
            id = unpack_id(packed)
            begun, first_due_at, reason = parse_attempts(attempts, split.bucket)
            task = decode_task_or_error(id, raw)
            at, last_failure = int(float(score)), parse_failure(failure)
            lease = parse_lease(attempts) if split.bucket is Bucket.UNACK else NO_LEASE
            records.append(
                TaskRecord(id, split.topic, task, split.bucket, at, begun, last_failure, first_due_at, reason, *lease)
            )
    return records
