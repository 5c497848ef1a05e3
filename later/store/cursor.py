"""Cursors over a topic's buckets, in all shards at once: by score, then by packed id.

That order is total, and a position in it keeps its meaning while tasks come and go: a task that stays where it is, is
returned exactly once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from later.core.errors import LaterError
from later.core.task import decode_task_or_error, pack_id, unpack_id
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import MAX_BODIES, UNREAD, build_record, pairs, parse_failure, parse_rows, raise_errors
from later.store.fanout import fan_out, fan_out_reads
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import BucketRange, ListSlice, TaskRecord

SLACK = 8
"""Entries read of each shard beyond its even share: tasks are not spread evenly."""
MAX_READ = 1000
"""Entries read of a shard at once."""


class BucketEntry(NamedTuple):
    """An entry of a bucket. Entries compare in the bucket's order."""

    score: int
    packed: bytes
    shard: int
    bucket: Bucket


class Listing:
    """Lists the tasks in a topic's buckets."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def slices(
        self, ranges: Sequence[BucketRange], limit: int, reason: str | None = None
    ) -> AsyncGenerator[ListSlice]:
        """Yield the tasks of one topic's ranges in one order, some at a time, with their bodies.

        A slice may be empty. `limit` is how many tasks the caller will use; one more tells it that others follow. (One
        that goes on all the same, because it leaves many out, gets larger slices.) With `reason`, only tasks whose last
        failure has this reason.

        Raises:
            StoreDown: the store cannot be read.
        """
        cursor = FilteredCursor(self._client, self._keys, ranges, reason, limit + 1)
        entries: list[BucketEntry] = []
        wanted, size = limit + 1, MAX_BODIES
        while True:
            if not entries:
                if cursor.ended:
                    return
                entries = await cursor.fetch(min(wanted, MAX_BODIES) if wanted > 0 else MAX_BODIES)
                if not entries:
                    if cursor.position is not None:
                        yield ListSlice([], cursor.position, cursor.examined)
                    continue
            batch = entries[:size]
            tasks, read = await self._read(ranges[0].topic.encode(), batch)
            yield ListSlice(tasks, (batch[read - 1].score, unpack_id(batch[read - 1].packed)), cursor.examined)
            size = read if read < len(batch) else min(size * 2, MAX_BODIES)
            wanted -= len(tasks)
            entries = entries[read:]

    async def _read(self, topic: bytes, entries: Sequence[BucketEntry]) -> tuple[list[TaskRecord], int]:
        """Return the tasks of the first of these entries, and the number of entries that were read: one at least.

        A task that has moved since is left out: a task is listed where it is, or not at all.
        """

        def build(target: ShardTopic, some: list[BucketEntry], max_bytes: int) -> Command:
            shard = target.shard
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return scripts.QUERY_SLICE.call(keys, [max_bytes, *(entry.packed for entry in some)])

        def locate(entry: BucketEntry) -> ShardTopic:
            return ShardTopic(self._keys.shards[entry.shard], topic)

        tasks: list[TaskRecord] = []
        rows = await fan_out_reads(self._client, "list", entries, locate, build, parse_rows)
        for number, (entry, row) in enumerate(zip(entries, rows, strict=True)):
            if isinstance(row, LaterError):
                raise row
            if row.body == UNREAD:
                return tasks, number
            if isinstance(row.body, bytes):
                id = unpack_id(entry.packed)
                record = build_record(id, topic, decode_task_or_error(id, row.body), row)
                if record is not None and (record.state, record.score) == (entry.bucket, entry.score):
                    tasks.append(record)
        return tasks, len(entries)


class FilteredCursor:
    """A cursor over a topic's ranges that, with a `reason`, only returns tasks whose last failure has this reason.

    `ahead` is about how many entries will be fetched. `examined` is how many were read, `position` the score and id of
    the last entry that was passed (None: none yet). At the end, `ended` is true.
    """

    def __init__(
        self, client: StoreClient, keys: Keys, ranges: Sequence[BucketRange], reason: str | None, ahead: int
    ) -> None:
        self.examined = 0
        self.position: tuple[int, str] | None = None
        self._client = client
        self._keys = keys
        self._cursor = BucketCursor(client, keys, ranges, ahead if reason is None else MAX_TASKS)
        self._reason = reason
        self._at_end = False
        self._found: list[BucketEntry] = []
        self._last: BucketEntry | None = None

    @property
    def ended(self) -> bool:
        return self._at_end and not self._found

    async def fetch(self, count: int) -> list[BucketEntry]:
        """Return the next entries, at most `count`: perhaps none, although others follow. Raises StoreDown."""
        if not self._found and not self._at_end:
            await self._read_on(count if self._reason is None else MAX_TASKS)
        fetched, self._found = self._found[:count], self._found[count:]
        passed = fetched[-1] if self._found else self._last
        if passed is not None:
            self.position = passed.score, unpack_id(passed.packed)
        return fetched

    async def _read_on(self, count: int) -> None:
        entries = await self._cursor.fetch(count)
        self.examined += len(entries)
        self._at_end = len(entries) < count
        self._last = entries[-1] if entries else self._last
        if self._reason is None:
            self._found = entries
            return
        stored = await fan_out(
            self._client,
            "dead",
            entries,
            lambda entry: ShardTopic(self._keys.shards[entry.shard], b""),
            lambda target, some: ("HMGET", target.shard.outcome, *(entry.packed for entry in some)),
        )
        failures = map(parse_failure, raise_errors(stored))
        self._found = [
            entry
            for entry, failure in zip(entries, failures, strict=True)
            if failure is not None and failure.reason == self._reason
        ]


class BucketCursor:
    """A cursor over ranges of a topic's buckets, in one order. `ahead` is about how many entries will be fetched."""

    def __init__(self, client: StoreClient, keys: Keys, ranges: Sequence[BucketRange], ahead: int) -> None:
        self._client = client
        self._sources = [_ShardSource(shard, range_) for range_ in ranges for shard in keys.shards]
        self._ahead = ahead

    async def fetch(self, count: int) -> list[BucketEntry]:
        """Return the next entries; fewer than `count` only at the end. Raises StoreDown."""
        fetched: list[BucketEntry] = []
        parts, ahead = len(self._sources), max(self._ahead, count)
        chunk = min(ahead if parts == 1 else ahead // parts + SLACK, MAX_READ)
        while len(fetched) < count:
            await self._fill(chunk)
            heads = [(source.buffer[0], source) for source in self._sources if source.buffer]
            if not heads:
                break
            heapq.heapify(heads)
            while heads and len(fetched) < count:  # take the least head, until a source must be read again
                entry, source = heads[0]
                fetched.append(entry)
                source.buffer.popleft()
                if source.buffer:
                    heapq.heapreplace(heads, (source.buffer[0], source))
                elif source.ended:
                    heapq.heappop(heads)
                else:
                    break
        return fetched

    async def _fill(self, chunk: int) -> None:
        """Read on, `chunk` entries of each source, wherever the buffer is empty and the range has not ended."""
        sources = [source for source in self._sources if not source.buffer and not source.ended]
        commands: list[Command] = []
        for source in sources:
            topic, bucket, since, before, _ = source.range
            arguments: list[Argument] = ["-inf" if since is None else since, "+inf" if before is None else before]
            arguments += [chunk, *(("", b"") if source.after is None else source.after)]
            commands.append(scripts.LIST.call([source.shard.bucket(bucket, topic.encode())], arguments))
        for source, answer in zip(sources, await self._client.execute_all("list", commands), strict=True):
            for packed, score in pairs(answer):
                source.after = int(float(score)), packed
                source.buffer.append(BucketEntry(*source.after, source.shard.index, source.range.bucket))
            source.ended = len(answer) < 2 * chunk


class _ShardSource:
    """One shard's share of a range: the entries that were read and not fetched yet."""

    def __init__(self, shard: Shard, range_: BucketRange) -> None:
        self.shard = shard
        self.range = range_
        self.after = None if range_.after is None else (range_.after[0], pack_id(range_.after[1]))
        self.buffer: deque[BucketEntry] = deque()
        self.ended = False
