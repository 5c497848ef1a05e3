"""The dead-letter verbs over many tasks: purge and redrive by topic, time and reason.

Both work slice by slice, so that none holds the store up, and each may be repeated after any interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from later.core.edit import renew_ttl
from later.core.task import Task, decode_task_or_error, encode_task, unpack_id
from later.core.validation import MAX_AHEAD_MS
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, parse_failure, raise_errors
from later.store.cursor import BucketCursor, BucketEntry
from later.store.expiry import Expiry
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import BucketRange, DeadTask, MoveResult

PURGEABLE = (Bucket.ERROR, Bucket.DELAY, Bucket.DEAD)
"""The buckets in which no delivery is in flight, in the order of a purge: a task whose pause ends moves to delay."""


class Redrive(NamedTuple):
    """A dead task to bring back. It is left alone if it has died again, or got another body, since it was read.

    `died_at` and `seen` are its time of death and its body as they were read (None: any). `task` is the new task (None:
    it stays as it is).
    """

    packed: bytes
    died_at: int | None
    due_at: int
    seen: bytes | None
    task: Task | None


def redrive_command(shard: Shard, topic: bytes, redrives: Sequence[Redrive]) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry, *shard.buckets(topic)]
    keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.DEAD]]
    arguments: list[Argument] = [topic]
    for packed, died_at, due_at, seen, task in redrives:
        ttl_end = None if task is None else task.expires_at
        arguments += [packed, "" if died_at is None else died_at, due_at, seen or b""]
        arguments += [b"" if task is None else encode_task(task), "" if ttl_end is None else ttl_end]
    return scripts.REDRIVE.call(keys, arguments)


class DeadLetters:
    """Purges and redrives a topic's tasks. Every method raises StoreDown: some tasks may have been moved then."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._expiry = Expiry(client, keys)

    async def redrive(
        self,
        dead: BucketRange,
        *,
        now: int,
        reason: str | None = None,
        rate: float | None = None,
        limit: int | None = None,
    ) -> MoveResult:
        """Bring back the dead of a range, of one reason or (None) of any, at most `limit`: dead → delay.

        They are due, and their ttl counts, from `now`; with a `rate` (tasks a second), one after the other, in order of
        death. Only tasks that died before `now` are moved, so that a task that dies again is not moved twice.
        """
        before = now if dead.before is None else min(dead.before, now)
        cursor = _DeadCursor(self._client, self._keys, dead._replace(before=before), reason, MAX_BODIES)
        moved = handled = 0
        while limit is None or moved < limit:
            entries = await cursor.fetch(MAX_BODIES if limit is None else limit - moved)
            if not entries:
                return MoveResult(moved, more=False)
            due_times = [
                now if rate is None else now + int(min(n * 1000 / rate, MAX_AHEAD_MS))
                for n in range(handled, handled + len(entries))
            ]
            moved += await self._redrive(dead.topic.encode(), list(zip(entries, due_times, strict=True)), now)
            handled += len(entries)
        return MoveResult(moved, more=bool(await cursor.fetch(1)))

    async def purge(self, ranges: Sequence[BucketRange], limit: int | None = None) -> MoveResult:
        """Remove the tasks of these ranges, at most `limit`. No range may be one of unack.

        One script runs at a time: a pipeline of them would hold the store up for as long as all of them take.
        """
        purged = 0
        for shard, range_ in [(shard, range_) for range_ in ranges for shard in self._keys.shards]:
            topic = range_.topic.encode()
            keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry]
            keys += [shard.bucket(range_.bucket, topic), shard.wakes[range_.bucket]]
            while limit is None or purged < limit:
                slice_limit = MAX_TASKS if limit is None else min(limit - purged, MAX_TASKS)
                command = scripts.PURGE.call(keys, [topic, *_score_bounds(range_), slice_limit])
                removed = await self._client.execute("purge", command)
                purged += removed
                if removed < slice_limit:
                    break
        if limit is None or purged < limit:
            return MoveResult(purged, more=False)
        counts: list[Command] = [
            ("ZCOUNT", shard.bucket(range_.bucket, range_.topic.encode()), *_score_bounds(range_))
            for range_ in ranges
            for shard in self._keys.shards
        ]
        return MoveResult(purged, more=any(await self._client.execute_all("purge", counts)))

    async def purge_dead(self, dead: BucketRange, reason: str, limit: int | None = None) -> MoveResult:
        """Remove the dead of a range that died for this reason, at most `limit`. A task that dies again stays."""
        cursor = _DeadCursor(self._client, self._keys, dead, reason, MAX_TASKS)
        purged = 0
        while limit is None or purged < limit:
            entries = await cursor.fetch(MAX_TASKS if limit is None else limit - purged)
            if not entries:
                return MoveResult(purged, more=False)
            tasks = [DeadTask(unpack_id(entry.packed), dead.topic, entry.shard, own_id=False) for entry in entries]
            purged += sum(raise_errors(await self._expiry.sweep(tasks, entries[-1].score, None)))
        return MoveResult(purged, more=bool(await cursor.fetch(1)))

    async def _redrive(self, topic: bytes, scheduled: Sequence[tuple[BucketEntry, int]], now: int) -> int:
        """Redrive entries, each to its due time; return how many. The others moved, or died again, since the read."""
        shards = self._keys.shards

        def read(target: ShardTopic, some: list[tuple[BucketEntry, int]]) -> Command:
            return ("HMGET", target.shard.pool, *(entry.packed for entry, _ in some))

        def write(target: ShardTopic, some: list[tuple[int, Redrive]]) -> Command:
            return redrive_command(*target, [redrive for _, redrive in some])

        raws = raise_errors(
            await fan_out(
                self._client, "redrive", scheduled, lambda item: ShardTopic(shards[item[0].shard], topic), read
            )
        )
        redrives: list[tuple[int, Redrive]] = []
        for (entry, due_at), raw in zip(scheduled, raws, strict=True):
            if raw is None:
                continue
            redrive = Redrive(entry.packed, entry.score, due_at, None, None)
            task = decode_task_or_error(unpack_id(entry.packed), raw)
            if isinstance(task, Task) and task.expires_at is not None:  # only a ttl changes the body: it counts anew
                redrive = redrive._replace(seen=raw, task=renew_ttl(task, now))
            redrives.append((entry.shard, redrive))
        answers = await fan_out(
            self._client,
            "redrive",
            redrives,
            lambda some: ShardTopic(shards[some[0]], topic),
            write,
            lambda rows: rows[0],
        )
        return raise_errors(answers).count(1)


class _DeadCursor:
    """A cursor over the dead of a range whose last failure had `reason`, or (None) over all, in order of death.

    The failures are read for `slice_size` entries at a time.
    """

    def __init__(self, client: Client, keys: Keys, dead: BucketRange, reason: str | None, slice_size: int) -> None:
        self._client = client
        self._keys = keys
        self._cursor = BucketCursor(client, keys, dead, slice_size)
        self._reason = reason
        self._slice_size = slice_size
        self._matching: list[BucketEntry] = []

    async def fetch(self, count: int) -> list[BucketEntry]:
        """Return the next entries: at most `count`, none only at the end. Raises StoreDown."""
        while not self._matching:
            entries = await self._cursor.fetch(self._slice_size)
            if not entries:
                return []
            if self._reason is None:
                self._matching = entries
            else:
                stored = await fan_out(
                    self._client,
                    "dead",
                    entries,
                    lambda entry: ShardTopic(self._keys.shards[entry.shard], b""),
                    lambda target, some: ("HMGET", target.shard.outcome, *(entry.packed for entry in some)),
                )
                failures = map(parse_failure, raise_errors(stored))
                self._matching = [
                    entry
                    for entry, failure in zip(entries, failures, strict=True)
                    if failure and failure.reason == self._reason
                ]
        fetched, self._matching = self._matching[:count], self._matching[count:]
        return fetched


def _score_bounds(range_: BucketRange) -> tuple[int | str, str]:
    since, before = range_.since, range_.before
    return "-inf" if since is None else since, "(+inf" if before is None else f"({before}"
