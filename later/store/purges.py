"""A topic's tasks removed: slice after slice, none of which holds the store up, and to be begun again anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from later.core.task import unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.dead import DeadCursor, raise_errors
from later.store.expiry import Expiry
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import MAX_TASKS, Command
from later.store.types import BucketRange, DeadTask, MoveResult

PURGED = (Bucket.ERROR, Bucket.DELAY, Bucket.DEAD)
"""The buckets where nothing is in flight, in the order in which they are emptied: a pause that ends goes to delay."""


class Purges:
    """Removes tasks with all that is known of them, their ids too. Each method raises StoreDown: some may be gone."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._ends = Expiry(client, keys)

    async def purge(self, stretches: Sequence[BucketRange], limit: int | None) -> MoveResult:
        """Tasks of these stretches, `limit` at most.

        One script at a time: a pipeline of them would hold the store up for as long as all of them take.
        """
        purged = 0
        for shard, stretch in self._places(stretches):
            while limit is None or purged < limit:
                most = MAX_TASKS if limit is None else min(limit - purged, MAX_TASKS)
                gone = await self._client.execute("purge", _purge(shard, stretch, most))
                purged += gone
                if gone < most:
                    break
        return MoveResult(purged, more=limit is not None and purged >= limit and await self._any_left(stretches))

    async def purge_dead(self, dead: BucketRange, reason: str, limit: int | None) -> MoveResult:
        """The dead of a stretch that died for this reason, `limit` at most. Who dies again meanwhile stays."""
        walk = DeadCursor(self._client, self._keys, dead, reason, MAX_TASKS)
        purged = 0
        while limit is None or purged < limit:
            entries = await walk.fetch(MAX_TASKS if limit is None else limit - purged)
            if not entries:
                return MoveResult(purged, more=False)
            some = [DeadTask(unpack_id(entry.packed), dead.topic, entry.shard, own_id=False) for entry in entries]
            purged += sum(raise_errors(await self._ends.sweep(some, entries[-1].score, None)))
        return MoveResult(purged, more=bool(await walk.fetch(1)))

    def _places(self, stretches: Sequence[BucketRange]) -> list[tuple[Shard, BucketRange]]:
        return [(shard, stretch) for stretch in stretches for shard in self._keys.shards]

    async def _any_left(self, stretches: Sequence[BucketRange]) -> bool:
        commands: list[Command] = [
            ("ZCOUNT", shard.bucket(stretch.bucket, stretch.topic.encode()), *_bounds(stretch))
            for shard, stretch in self._places(stretches)
        ]
        return any(await self._client.execute_all("purge", commands))


def _purge(shard: Shard, stretch: BucketRange, limit: int) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry]
    topic = stretch.topic.encode()
    keys += [shard.bucket(stretch.bucket, topic), shard.wakes[stretch.bucket]]
    return scripts.PURGE.call(keys, [topic, *_bounds(stretch), limit])


def _bounds(stretch: BucketRange) -> tuple[int | str, str]:
    since, before = stretch.since, stretch.before
    return "-inf" if since is None else since, "(+inf" if before is None else f"({before}"
