"""A walk through one of a topic's buckets, over all shards at once: by score, then by packed id.

That order is total, and a place in it means the same whatever comes and goes: what is there all the time is met once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from later.core.errors import LaterError
from later.core.task import pack_id, unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, TaskRow, build_record, decode_task, pairs, parse_rows
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Argument, Command
from later.store.types import BucketRange, Page, TaskRecord

SLACK = 8
"""Read ahead of each shard beyond its even part: tasks are not spread so evenly."""
MAX_READ = 1000
"""Entries read of a shard at once."""


class BucketEntry(NamedTuple):
    """Of a bucket. They are ordered as they stand here."""

    score: int
    packed: bytes
    shard: int


class Listing:
    """Reads pages."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def page(self, stretch: BucketRange, limit: int) -> Page:
        """The first tasks of a stretch; fewer than `limit` only where it ends. Raises StoreDown."""
        walk = BucketCursor(self._client, self._keys, stretch, limit + 1)
        tasks: list[TaskRecord] = []
        while len(tasks) < limit:
            entries = await walk.fetch(min(limit - len(tasks), MAX_BODIES))
            if not entries:
                return Page(tasks, more=False)
            tasks += await self._still_there(stretch, entries)
        return Page(tasks, more=bool(await walk.fetch(1)))

    async def _still_there(self, stretch: BucketRange, entries: Sequence[BucketEntry]) -> list[TaskRecord]:
        """The tasks that these entries are of; without those that have moved since they were met: a task is shown
        where it is, or not at all."""
        topic = stretch.topic.encode()

        def call(shard: Shard, topic: bytes, some: list[BucketEntry]) -> Command:
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return scripts.QUERY.call(keys, [entry.packed for entry in some])

        shards = self._keys.shards
        rows = await fan_out(
            self._client, "list", entries, lambda entry: (shards[entry.shard], topic), call, read=parse_rows
        )
        found = [_found(stretch, entry, row) for entry, row in zip(entries, rows, strict=True)]
        return [task for task in found if task is not None]


class _Source:
    """One shard's part of the walk: what was read of it and not met yet."""

    def __init__(self, shard: Shard, after: tuple[int, bytes] | None) -> None:
        self.shard = shard
        self.after = after
        self.waiting: deque[BucketEntry] = deque()
        self.ended = False

    def take_in(self, answer: Sequence[bytes], asked: int) -> None:
        for packed, score in pairs(answer):
            self.after = int(float(score)), packed
            self.waiting.append(BucketEntry(*self.after, self.shard.index))
        self.ended = len(answer) < 2 * asked


class BucketCursor:
    """Meets the entries of a stretch. `ahead` is about how many will be wanted."""

    def __init__(self, client: Client, keys: Keys, stretch: BucketRange, ahead: int) -> None:
        self._client = client
        self._stretch = stretch
        self._chunk = min(ahead if len(keys.shards) == 1 else ahead // len(keys.shards) + SLACK, MAX_READ)
        after = None if stretch.after is None else (stretch.after[0], pack_id(stretch.after[1]))
        self._sources = [_Source(shard, after) for shard in keys.shards]

    async def fetch(self, count: int) -> list[BucketEntry]:
        """The next entries; fewer than `count` only at the end. Raises StoreDown."""
        taken: list[BucketEntry] = []
        while len(taken) < count:
            await self._fill()
            heads = [(source.waiting[0], source) for source in self._sources if source.waiting]
            if not heads:
                break
            heapq.heapify(heads)
            self._merge(heads, taken, count)
        return taken

    async def _fill(self) -> None:
        """So that no source is empty that has not ended."""
        hungry = [source for source in self._sources if not source.waiting and not source.ended]
        asked = self._chunk
        answers = await self._client.execute_all("list", [self._read(source, asked) for source in hungry])
        for source, answer in zip(hungry, answers, strict=True):
            source.take_in(answer, asked)

    def _read(self, source: _Source, count: int) -> Command:
        topic, bucket, since, before, _ = self._stretch
        arguments: list[Argument] = ["-inf" if since is None else since, "+inf" if before is None else before, count]
        arguments += ["", b""] if source.after is None else [*source.after]
        return scripts.LIST.call([source.shard.bucket(bucket, topic.encode())], arguments)

    def _merge(self, heads: list[Any], taken: list[BucketEntry], count: int) -> None:
        """The smallest of the heads, one after the other, until as many are taken or a source must be read again."""
        while heads and len(taken) < count:
            entry, source = heads[0]
            taken.append(entry)
            source.waiting.popleft()
            if source.waiting:
                heapq.heapreplace(heads, (source.waiting[0], source))
            elif source.ended:
                heapq.heappop(heads)
            else:
                return


def _found(stretch: BucketRange, entry: BucketEntry, row: TaskRow | LaterError) -> TaskRecord | None:
    if isinstance(row, LaterError):
        raise row
    if row.body is None:
        return None
    id = unpack_id(entry.packed)
    found = build_record(id, stretch.topic.encode(), decode_task(id, row.body), row)
    here: tuple[Bucket, Any] = (stretch.bucket, entry.score)
    return found if found is not None and (found.state, found.score) == here else None
