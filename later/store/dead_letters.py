"""The dead-letter verbs over many tasks: purge and redrive by topic, time and reason.

Both work slice by slice, so that none holds the store up, and each may be repeated after any interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from later.core.edit import renew_ttl
from later.core.errors import StoreDown
from later.core.task import Task, decode_task_or_error, encode_task, unpack_id
from later.core.validation import MAX_AHEAD_MS
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import MAX_BODIES, UNREAD, raise_errors
from later.store.cursor import BucketEntry, FilteredCursor
from later.store.expiry import Expiry
from later.store.fanout import fan_out, fan_out_reads
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import BucketRange, DeadTask, MoveResult

MAX_MOVES = 10_000
"""Tasks that one call moves at most: it is part of one request, which must end soon."""
MAX_EXAMINED = 100_000
"""Dead tasks whose reason one call reads, or a few more."""
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


class _Moved:
    """The number of tasks that a call has moved. A `StoreDown` in its `with` block is `unknown` if there may be any."""

    def __init__(self) -> None:
        self.count = 0
        self._may_be_more = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, StoreDown) and (self.count or self._may_be_more):
            error.unknown = True

    def add(self, answers: Sequence[Any]) -> None:
        """Count the tasks that were moved, by the answers about all of them. Raise the first error among those."""
        self.count += sum(answer == 1 for answer in answers)
        self._may_be_more = any(isinstance(answer, StoreDown) and answer.unknown for answer in answers)
        raise_errors(list(answers))


class DeadLetters:
    """Purges and redrives a topic's tasks. Every method raises StoreDown; tasks may have been moved if it is `unknown`.

    Each call is limited to `MAX_MOVES` and `MAX_EXAMINED`, and is repeated for the rest.
    """

    def __init__(self, client: StoreClient, keys: Keys) -> None:
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
        due_from: int = 0,
        limit: int | None = None,
    ) -> MoveResult:
        """Bring back the dead of a range, of one reason or (None) of any, at most `limit`: dead → delay.

        They are due, and their ttl counts, from `now`; with a `rate` (tasks a second), one after the other, in order of
        death, from `now` or `due_from` on. Only tasks that died before `now` are moved, so that a task that dies again
        is not moved twice.
        """
        before = now if dead.before is None else min(dead.before, now)
        cursor = FilteredCursor(self._client, self._keys, [dead._replace(before=before)], reason, MAX_BODIES)

        def due_time(number: int) -> int:
            if rate is None:
                return now
            return min(max(now, due_from) + int(number * 1000 / rate), now + MAX_AHEAD_MS)

        most = MAX_MOVES if limit is None else min(limit, MAX_MOVES)
        handled = 0
        with _Moved() as moved:
            while moved.count < most and cursor.examined < MAX_EXAMINED and not cursor.ended:
                entries = await cursor.fetch(min(most - moved.count, MAX_BODIES))
                due_times = [due_time(n) for n in range(handled, handled + len(entries))]
                await self._redrive(dead.topic.encode(), list(zip(entries, due_times, strict=True)), now, moved)
                handled += len(entries)
            result = await _result(cursor, moved.count)
        if limit is not None and reason is None and rate is None:
            return result._replace(position=None)  # the same call goes on: what it has moved is no longer there
        return result._replace(next_due_at=due_time(handled)) if result.more and rate is not None else result

    async def purge(self, ranges: Sequence[BucketRange], limit: int | None = None) -> MoveResult:
        """Remove the tasks of these ranges, at most `limit`. A task that was in flight is then settled in vain.

        One script runs at a time: a pipeline of them would hold the store up for as long as all of them take.
        """
        most = MAX_MOVES if limit is None else min(limit, MAX_MOVES)
        with _Moved() as purged:
            for shard, range_ in [(shard, range_) for range_ in ranges for shard in self._keys.shards]:
                topic = range_.topic.encode()
                keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry]
                keys += [shard.bucket(range_.bucket, topic), shard.wakes[range_.bucket]]
                while purged.count < most:
                    slice_limit = min(most - purged.count, MAX_TASKS)
                    command = scripts.PURGE.call(keys, [topic, *_score_bounds(range_), slice_limit])
                    removed = await self._client.execute("purge", command)
                    purged.count += removed
                    if removed < slice_limit:
                        break
            return MoveResult(purged.count, more=purged.count >= most and any(await self.count(ranges)))

    async def purge_dead(self, dead: BucketRange, reason: str, limit: int | None = None) -> MoveResult:
        """Remove the dead of a range that died for this reason, at most `limit`. A task that dies again stays."""
        cursor = FilteredCursor(self._client, self._keys, [dead], reason, MAX_TASKS)
        most = MAX_MOVES if limit is None else min(limit, MAX_MOVES)
        with _Moved() as purged:
            while purged.count < most and cursor.examined < MAX_EXAMINED and not cursor.ended:
                entries = await cursor.fetch(min(most - purged.count, MAX_TASKS))
                if entries:
                    tasks = [DeadTask(unpack_id(e.packed), dead.topic, e.shard) for e in entries]
                    purged.add(await self._expiry.sweep(tasks, entries[-1].score))
            return await _result(cursor, purged.count)

    async def count(self, ranges: Sequence[BucketRange]) -> list[int]:
        """Return the number of tasks in each range."""
        counts: list[Command] = [
            ("ZCOUNT", shard.bucket(range_.bucket, range_.topic.encode()), *_score_bounds(range_))
            for range_ in ranges
            for shard in self._keys.shards
        ]
        answers, shards = await self._client.execute_all("count", counts), len(self._keys.shards)
        return [sum(answers[start : start + shards]) for start in range(0, len(answers), shards)]

    async def count_dead(self, dead: BucketRange, reason: str | None) -> MoveResult:
        """Count the dead of a range, of one reason or (None) of any, as if they were moved."""
        cursor = FilteredCursor(self._client, self._keys, [dead], reason, MAX_TASKS)
        found = 0
        while cursor.examined < MAX_EXAMINED and not cursor.ended:
            found += len(await cursor.fetch(MAX_TASKS))
        return await _result(cursor, found)

    async def _redrive(
        self, topic: bytes, scheduled: Sequence[tuple[BucketEntry, int]], now: int, moved: _Moved
    ) -> None:
        """Redrive entries, each to its due time, unless they moved, or died again, since they were read."""
        while scheduled:
            redrives, left = await self._read_redrives(topic, scheduled, now)
            answers = await fan_out(
                self._client,
                "redrive",
                redrives,
                lambda some: ShardTopic(self._keys.shards[some[0]], topic),
                lambda target, some: redrive_command(*target, [redrive for _, redrive in some]),
                lambda rows: rows[0],
            )
            moved.add(answers)
            scheduled = left

    async def _read_redrives(
        self, topic: bytes, scheduled: Sequence[tuple[BucketEntry, int]], now: int
    ) -> tuple[list[tuple[int, Redrive]], list[tuple[BucketEntry, int]]]:
        """Return the redrives of entries whose bodies fit in one round trip, with their shards, and the other entries.

        At least one body is read. An entry without a body is left out.
        """
        shards = self._keys.shards

        def read(target: ShardTopic, some: list[tuple[BucketEntry, int]], max_bytes: int) -> Command:
            return scripts.READ_BODIES.call([target.shard.pool], [max_bytes, *(entry.packed for entry, _ in some)])

        raws = raise_errors(
            await fan_out_reads(
                self._client, "read", scheduled, lambda item: ShardTopic(shards[item[0].shard], topic), read
            )
        )
        redrives: list[tuple[int, Redrive]] = []
        left: list[tuple[BucketEntry, int]] = []
        for (entry, due_at), raw in zip(scheduled, raws, strict=True):
            if raw is None:
                continue
            if raw == UNREAD:
                left.append((entry, due_at))
                continue
            redrive = Redrive(entry.packed, entry.score, due_at, None, None)
            task = decode_task_or_error(unpack_id(entry.packed), raw)
            if isinstance(task, Task) and task.expires_at is not None:  # only a ttl changes the body: it counts anew
                redrive = redrive._replace(seen=raw, task=renew_ttl(task, now))
            redrives.append((entry.shard, redrive))
        return redrives, left


async def _result(cursor: FilteredCursor, moved: int) -> MoveResult:
    """Return the result of a call that has moved tasks up to the cursor's position."""
    position = cursor.position
    follows = bool(await cursor.fetch(1)) or not cursor.ended
    return MoveResult(moved, True, position) if follows else MoveResult(moved, more=False)


def _score_bounds(range_: BucketRange) -> tuple[int | str, str]:
    since, before = range_.since, range_.before
    return "-inf" if since is None else since, "(+inf" if before is None else f"({before}"
