"""A cursor over one of a topic's buckets, in all shards at once: by score, then by packed id.

That order is total, and a position in it keeps its meaning while tasks come and go: a task that stays where it is, is
returned exactly once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from later.core.errors import LaterError
from later.core.task import decode_task_or_error, pack_id, unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, build_record, pairs, parse_rows
from later.store.fanout import fan_out
from later.store.keys import Keys, Shard, ShardTopic
from later.store.scripts import Argument, Command
from later.store.types import BucketRange, Page, TaskRecord

SLACK = 8
"""Entries read of each shard beyond its even share: tasks are not spread evenly."""
MAX_READ = 1000
"""Entries read of a shard at once."""


class BucketEntry(NamedTuple):
    """An entry of a bucket. Entries compare in the bucket's order."""

    score: int
    packed: bytes
    shard: int


class Listing:
    """Lists the tasks of a topic's bucket, page by page."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def page(self, bucket_range: BucketRange, limit: int) -> Page:
        """Return the first tasks of a range: fewer than `limit` only if it ends. Raises StoreDown."""
        cursor = BucketCursor(self._client, self._keys, bucket_range, limit + 1)
        tasks: list[TaskRecord] = []
        while len(tasks) < limit:
            entries = await cursor.fetch(min(limit - len(tasks), MAX_BODIES))
            if not entries:
                return Page(tasks, more=False)
            tasks += await self._read(bucket_range, entries)
        return Page(tasks, more=bool(await cursor.fetch(1)))

    async def _read(self, bucket_range: BucketRange, entries: Sequence[BucketEntry]) -> list[TaskRecord]:
        """Return the tasks of these entries that have not moved since: a task is listed where it is, or not at all."""
        topic = bucket_range.topic.encode()

        def build(target: ShardTopic, some: list[BucketEntry]) -> Command:
            shard = target.shard
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return scripts.QUERY.call(keys, [entry.packed for entry in some])

        def locate(entry: BucketEntry) -> ShardTopic:
            return ShardTopic(self._keys.shards[entry.shard], topic)

        tasks: list[TaskRecord] = []
        rows = await fan_out(self._client, "list", entries, locate, build, parse_rows)
        for entry, row in zip(entries, rows, strict=True):
            if isinstance(row, LaterError):
                raise row
            if row.body is not None:
                id = unpack_id(entry.packed)
                record = build_record(id, topic, decode_task_or_error(id, row.body), row)
                if record is not None and (record.state, record.score) == (bucket_range.bucket, entry.score):
                    tasks.append(record)
        return tasks


class BucketCursor:
    """A cursor over a range of a bucket. `ahead` is about how many entries will be fetched."""

    def __init__(self, client: Client, keys: Keys, bucket_range: BucketRange, ahead: int) -> None:
        self._client = client
        self._range = bucket_range
        self._chunk = min(ahead if len(keys.shards) == 1 else ahead // len(keys.shards) + SLACK, MAX_READ)
        after = None if bucket_range.after is None else (bucket_range.after[0], pack_id(bucket_range.after[1]))
        self._sources = [_ShardSource(shard, after) for shard in keys.shards]

    async def fetch(self, count: int) -> list[BucketEntry]:
        """Return the next entries; fewer than `count` only at the end. Raises StoreDown."""
        fetched: list[BucketEntry] = []
        while len(fetched) < count:
            await self._fill()
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

    async def _fill(self) -> None:
        """Read on wherever the buffer is empty and the range has not ended."""
        topic, bucket, since, before, _ = self._range
        sources = [source for source in self._sources if not source.buffer and not source.ended]
        commands: list[Command] = []
        for source in sources:
            arguments: list[Argument] = ["-inf" if since is None else since, "+inf" if before is None else before]
            arguments += [self._chunk, *(("", b"") if source.after is None else source.after)]
            commands.append(scripts.LIST.call([source.shard.bucket(bucket, topic.encode())], arguments))
        for source, answer in zip(sources, await self._client.execute_all("list", commands), strict=True):
            for packed, score in pairs(answer):
                source.after = int(float(score)), packed
                source.buffer.append(BucketEntry(*source.after, source.shard.index))
            source.ended = len(answer) < 2 * self._chunk


class _ShardSource:
    """One shard's share of the range: the entries that were read and not fetched yet."""

    def __init__(self, shard: Shard, after: tuple[int, bytes] | None) -> None:
        self.shard = shard
        self.after = after
        self.buffer: deque[BucketEntry] = deque()
        self.ended = False
