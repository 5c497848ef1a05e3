"""Pages of what stands in one of a topic's buckets, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from later.core.errors import LaterError
from later.core.task import unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, TaskRow, build_record, decode_task, parse_rows
from later.store.cursor import BucketCursor, BucketEntry
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Command
from later.store.types import BucketRange, Page, TaskRecord


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


def _found(stretch: BucketRange, entry: BucketEntry, row: TaskRow | LaterError) -> TaskRecord | None:
    if isinstance(row, LaterError):
        raise row
    if row.body is None:
        return None
    id = unpack_id(entry.packed)
    found = build_record(id, stretch.topic.encode(), decode_task(id, row.body), row)
    here: tuple[Bucket, Any] = (stretch.bucket, entry.score)
    return found if found is not None and (found.state, found.score) == here else None
