"""Reads all that a store holds and another one can take over, as records.

Tasks are read in two ways. By bucket, in an order that lasts, from a store that nobody uses: so a move can go on where
it was killed. By id, from a store that is in use: a task that is there all the time is read at least once, wherever it
moves meanwhile, each time as it was at one moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from later.core.errors import UnreadableBody
from later.core.export_lines import SETTINGS
from later.core.store_records import (
    FieldEntry,
    FieldKind,
    JobEntry,
    Record,
    ScheduleEntry,
    TaskEntry,
    TimeEntry,
    TimeKind,
    TrailEntry,
)
from later.core.task import decode_task
from later.store import scripts
from later.store.audit_trail import MAX_EVENTS
from later.store.client import StoreClient
from later.store.codec import TaskRow, pairs, parse_rows
from later.store.fanout import MAX_READ_BYTES
from later.store.keys import Bucket, Keys, Shard, job_of
from later.store.schedules import RawSchedule
from later.store.scripts import MAX_TASKS, Argument, Command

SCAN_SLICE = 1000
SCHEDULES_AT_ONCE = 50
"""Schedules read at once: each may have 128 KiB."""
TASKS_AT_ONCE = 2000
"""Tasks of a bucket read by one call: Lua's `unpack` fails near 8,000 values."""
BUCKETS_AT_ONCE = 100
FEWEST_AT_ONCE = 10
"""Tasks that a scan of the pool asks for first, while it does not know how large they are."""
NO_TOPIC = b"unknown"
"""The topic of a task whose body cannot be read, and that is in no bucket, as the doctor has it."""


class TaskMark(NamedTuple):
    """A place in the order of a store's tasks by bucket: all before it, and the entry itself, have been read.

    With the key b"" no task of the shard has been read; without an id the whole bucket has.
    """

    shard: int
    key: bytes = b""
    score: int = 0
    id: bytes = b""


class TaskPiece(NamedTuple):
    """Tasks that follow one another; `mark` is None while others of the same buckets are still to be read."""

    tasks: list[TaskEntry]
    mark: TaskMark | None


class TaskCounts(NamedTuple):
    """The number of tasks in each bucket, by topic and bucket; those in flight count as waiting."""

    tasks: dict[tuple[bytes, str], int]


class StoreReader:
    """Reads one store. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def needs(self) -> list[str]:
        """Return what every daemon on the store must know."""
        written = await self._client.execute("read", ("HGET", self._keys.meta, "needs"))
        return sorted(filter(None, (written or b"").decode("utf-8", "replace").replace(" ", "").split(",")))

    async def count_tasks(self) -> int:
        """Return the number of tasks."""
        sizes: list[Command] = [("HLEN", shard.pool) for shard in self._keys.shards]
        return sum(await self._client.execute_all("read", sizes))

    async def count_by_bucket(self) -> TaskCounts:
        """Return the number of tasks by topic and bucket."""
        counts: dict[tuple[bytes, str], int] = {}
        for shard in self._keys.shards:
            keys = await self.bucket_keys(shard)
            for start in range(0, len(keys), SCAN_SLICE):
                part = keys[start : start + SCAN_SLICE]
                sizes = await self._client.execute_all("read", [("ZCARD", key) for key in part])
                for key, size in zip(part, sizes, strict=True):
                    bucket, topic = _parse_key(shard, key)
                    place = (topic, Bucket.DELAY.value if bucket is Bucket.UNACK else bucket.value)
                    counts[place] = counts.get(place, 0) + size
        return TaskCounts(counts)

    async def bucket_keys(self, shard: Shard) -> list[bytes]:
        """Return the keys of a shard's buckets, in order."""
        options = ("MATCH", shard.key_pattern, "COUNT", SCAN_SLICE)
        keys = set[bytes]()
        cursor = 0
        while True:
            cursor, found = await self._client.execute_at("read", shard.pool, ("SCAN", cursor, *options))
            keys.update(found)
            if cursor == 0:
                break
        return sorted(key for key in keys if shard.parse_bucket_key(key) is not None)

    # All but tasks

    async def count_others(self) -> dict[str, int]:
        """Return the number of records of each kind but tasks, bulk jobs and settings."""
        kinds = [*self._keys.copied_hashes]
        hashes = [*self._keys.copied_hashes.values()]
        shards = self._keys.shards
        sizes, versions, [ramps, audit], schedules, remembered = [
            await self._client.execute_all("read", commands)
            for commands in (
                [("HLEN", key) for key in hashes],
                [("HEXISTS", key, b"version") for key in hashes],
                [("ZCARD", self._keys.ramps), ("XLEN", self._keys.audit_trail)],
                [("HLEN", shard.schedules) for shard in shards],
                [("ZCARD", shard.done) for shard in shards],
            )
        ]
        return {
            **{kind.value: size - version for kind, size, version in zip(kinds, sizes, versions, strict=True)},
            TimeKind.RAMP.value: ramps,
            "audit": min(audit, MAX_EVENTS),  # a trail is cut where it has about as many
            "schedule": sum(schedules),
            TimeKind.REMEMBERED.value: sum(remembered),
        }

    async def shared(self) -> AsyncIterator[list[Record]]:
        """Yield the records that are in no shard."""
        values = await self._client.execute("read", ("HMGET", self._keys.meta, *SETTINGS))
        yield [
            FieldEntry(FieldKind.SETTING, name, value)
            for name, value in zip(SETTINGS, values, strict=True)
            if value is not None
        ]
        for kind, key in self._keys.copied_hashes.items():
            async for fields in self._scan(("HSCAN", key), ("COUNT", SCAN_SLICE)):
                is_keys = fields.pop(b"version", None) is not None and kind is FieldKind.API_KEY
                has_had_keys = [FieldEntry(kind, b"version", b"1")] if is_keys else []
                yield [*has_had_keys, *(FieldEntry(kind, name, value) for name, value in fields.items())]
        async for members in self._scan(("ZSCAN", self._keys.ramps), ("COUNT", SCAN_SLICE)):
            yield [TimeEntry(TimeKind.RAMP, topic, int(float(at))) for topic, at in members]
        start = "-"
        while True:
            page = await self._client.execute(
                "read", ("XRANGE", self._keys.audit_trail, start, "+", "COUNT", SCAN_SLICE)
            )
            yield [TrailEntry(id, values[b"event"]) for id, values in page if b"event" in values]
            if len(page) < SCAN_SLICE:
                return
            start = "(" + page[-1][0].decode()

    async def in_shard(self, shard: Shard) -> AsyncIterator[list[Record]]:
        """Yield the records of a shard but its tasks. A bulk job is read once, from the shard that counts its batches.

        Raises:
            StoreFault: a schedule is of a later version.
        """
        async for definitions in self._scan(("HSCAN", shard.schedules), ("COUNT", SCHEDULES_AT_ONCE)):
            yield await self._schedules(shard, definitions)
        async for members in self._scan(("ZSCAN", shard.done), ("COUNT", SCAN_SLICE)):
            yield [TimeEntry(TimeKind.REMEMBERED, name, int(float(at))) for name, at in members]
        async for members in self._scan(("ZSCAN", shard.jobs), ("COUNT", SCAN_SLICE)):
            for counter, forget_at in members:
                async for entry in self._job(shard, counter, int(float(forget_at))):
                    yield [entry]

    async def _schedules(self, shard: Shard, definitions: dict[bytes, bytes]) -> list[Record]:
        if not definitions:
            return []
        commands: list[Command] = [
            ("HMGET", shard.schedule_states, *definitions),
            ("ZMSCORE", shard.firings, *definitions),
        ]
        states, times = await self._client.execute_all("read", commands)
        entries: list[Record] = []
        for (id, definition), state, at in zip(definitions.items(), states, times, strict=True):
            if state is not None:  # otherwise it has just been removed
                RawSchedule(id.decode("utf-8", "backslashreplace"), shard, definition, state).parse()
                entries.append(ScheduleEntry(id, definition, state, None if at is None else int(float(at))))
        return entries

    async def _job(self, shard: Shard, counter: bytes, forget_at: int) -> AsyncIterator[JobEntry]:
        name = counter.decode("utf-8", "backslashreplace")
        own = self._keys.shard_of(job_of(name))
        if own is not shard and await self._client.execute("read", ("ZSCORE", own.jobs, counter)) is not None:
            return
        created: list[Command] = [("HGET", each.job(name), "created") for each in self._keys.shards]
        total = sum(int(count or 0) for count in await self._client.execute_all("read", created))
        yield JobEntry(counter, forget_at, {b"created": b"%d" % total} if total else {})
        async for counts in self._scan(("HSCAN", own.job(name)), ("COUNT", SCAN_SLICE)):
            yield JobEntry(counter, forget_at, {field: count for field, count in counts.items() if field != b"created"})

    # Tasks by bucket

    async def by_bucket(self, shard: Shard, after: TaskMark | None = None) -> AsyncIterator[TaskPiece]:
        """Yield a shard's tasks in the order of its buckets' keys, then of their entries, from a mark on.

        The store must not be in use: otherwise a task that moves may be read twice, or not at all.
        """
        keys = await self.bucket_keys(shard)
        if after is not None and after.key:
            keys = [key for key in keys if key > after.key or (key == after.key and after.id)]
        while keys:
            part = keys[:BUCKETS_AT_ONCE]
            sizes = await self._client.execute_all("read", [("ZCARD", key) for key in part])
            count = _prefix_within(sizes, TASKS_AT_ONCE)
            start = (after.score, after.id) if after is not None and after.key == keys[0] and after.id else None
            async for piece in self._read_buckets(shard, keys[:count], start):
                yield piece
            keys = keys[count:]

    async def _read_buckets(
        self, shard: Shard, keys: Sequence[bytes], start: tuple[int, bytes] | None
    ) -> AsyncIterator[TaskPiece]:
        """Yield the tasks of some small buckets, or of one of any size, after an entry of the first one."""
        left: dict[bytes, tuple[Argument, Argument]] = dict.fromkeys(keys, ("", b""))
        if start is not None:
            left[keys[0]] = start
        while left:
            commands: list[Command] = [
                scripts.READ.call(
                    [key, shard.pool, shard.attempts, shard.outcome],
                    ["-inf", "+inf", *after, "", b"", TASKS_AT_ONCE, MAX_READ_BYTES // len(left)],
                )
                for key, after in left.items()
            ]
            answers = await self._client.execute_all("read", commands)
            tasks: list[TaskEntry] = []
            following: dict[bytes, tuple[Argument, Argument]] = {}
            for key, (more, entries, *rows) in zip(left, answers, strict=True):
                tasks += _parse_entries(*_parse_key(shard, key), entries, rows)
                if more:
                    following[key] = (int(float(entries[-1])), entries[-2])
            left = following
            mark = TaskMark(shard.index, keys[-1]) if not left else None
            if left and len(keys) == 1:
                mark = TaskMark(shard.index, keys[0], *left[keys[0]])  # type: ignore[arg-type]  # as they were read
            yield TaskPiece(tasks, mark)

    # Tasks by id

    async def by_id(self, shard: Shard, now: int) -> AsyncIterator[list[TaskEntry]]:
        """Yield a shard's tasks, each at least once if it is there all the time.

        A task that is in no bucket, which is a defect, is read as if it were due at `now` (ms).
        """
        cursor, count = 0, FEWEST_AT_ONCE
        unreadable: list[bytes] = []
        while True:
            cursor, bodies = await self._client.execute("read", ("HSCAN", shard.pool, cursor, "COUNT", count))
            size = sum(map(len, bodies.values()))
            by_topic: dict[bytes, list[bytes]] = {}
            for id, body in bodies.items():
                topic = _topic_of(body)
                if topic is None:
                    unreadable.append(id)
                else:
                    by_topic.setdefault(topic, []).append(id)
            async for tasks in self._by_topic(shard, by_topic, now):
                yield tasks
            if unreadable:
                yield await self._find(shard, unreadable, now)
                unreadable = []
            if cursor == 0:
                return
            if bodies:
                count = max(FEWEST_AT_ONCE, min(MAX_TASKS, MAX_READ_BYTES * len(bodies) // max(size, 1)))

    async def _by_topic(
        self, shard: Shard, by_topic: dict[bytes, list[bytes]], now: int
    ) -> AsyncIterator[list[TaskEntry]]:
        """Yield tasks of these topics; of one that has moved to another topic meanwhile, as it is there."""
        while by_topic:
            groups = [
                (topic, ids[start : start + MAX_TASKS])
                for topic, ids in by_topic.items()
                for start in range(0, len(ids), MAX_TASKS)
            ]
            fixed = [shard.pool, shard.done, shard.attempts, shard.outcome]
            commands = [scripts.QUERY.call([*fixed, *shard.buckets(topic)], ids) for topic, ids in groups]
            answers = await self._client.execute_all("read", commands)
            by_topic, found, unreadable = {}, list[TaskEntry](), list[bytes]()
            for (topic, ids), answer in zip(groups, answers, strict=True):
                for id, row in zip(ids, parse_rows(answer), strict=True):
                    if not isinstance(row.body, bytes):  # it has ended meanwhile
                        continue
                    if (at_topic := _topic_of(row.body)) is None:
                        unreadable.append(id)
                    elif at_topic != topic:
                        by_topic.setdefault(at_topic, []).append(id)
                    else:
                        found.append(_entry(id, topic, row, now))
            yield [*found, *(await self._find(shard, unreadable, now) if unreadable else [])]

    async def _find(self, shard: Shard, ids: Sequence[bytes], now: int) -> list[TaskEntry]:
        """Return tasks whose bodies cannot be read, from the buckets that hold them."""
        places: dict[bytes, tuple[bytes, int]] = {}
        keys = await self.bucket_keys(shard)
        for start in range(0, len(keys), BUCKETS_AT_ONCE):
            part = keys[start : start + BUCKETS_AT_ONCE]
            answers = await self._client.execute_all("read", [("ZMSCORE", key, *ids) for key in part])
            for key, scores in zip(part, answers, strict=True):
                places.update({id: (key, int(float(at))) for id, at in zip(ids, scores, strict=True) if at is not None})
        rows: list[Command] = [("HMGET", key, *ids) for key in (shard.pool, shard.attempts, shard.outcome)]
        found: list[TaskEntry] = []
        for id, body, attempts, failure in zip(ids, *await self._client.execute_all("read", rows), strict=True):
            if body is not None:
                key, at = places.get(id, (shard.bucket(Bucket.DEAD, NO_TOPIC), now))
                bucket, topic = _parse_key(shard, key)
                found.append(TaskEntry(id, topic, bucket.value, at, body, attempts, failure))
        return found

    async def _scan(self, scan: Command, options: Command) -> AsyncIterator[Any]:
        """Yield the results of a SCAN, HSCAN or ZSCAN, slice by slice."""
        cursor = 0
        while True:
            cursor, found = await self._client.execute("read", (*scan, cursor, *options))
            yield found
            if cursor == 0:
                return


def _prefix_within(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first sizes are within the limit together; one at least."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > limit:
            return max(count, 1)
    return len(sizes)


def _parse_key(shard: Shard, key: bytes) -> tuple[Bucket, bytes]:
    """Return the bucket and the topic of a bucket's key."""
    located = shard.parse_bucket_key(key)
    assert located is not None
    return located


def _parse_entries(bucket: Bucket, topic: bytes, entries: Sequence[bytes], rows: Sequence[Any]) -> list[TaskEntry]:
    """Return the tasks of a bucket that were read, without entries that have no body."""
    state = bucket.value  # once: an enum takes as long for it as the rest of a task
    return [
        TaskEntry(id, topic, state, int(float(score)), body, attempts, failure)
        for (id, score), body, attempts, failure in zip(pairs(entries), *rows, strict=True)
        if body is not None
    ]


def _entry(id: bytes, topic: bytes, row: TaskRow, now: int) -> TaskEntry:
    """Return a task in the bucket that holds it; due at `now` if none does."""
    scores = zip(Bucket, (row.delay, row.unack, row.error, row.dead), strict=True)
    place = next(((bucket, int(float(at))) for bucket, at in scores if at is not None), (Bucket.DELAY, now))
    assert isinstance(row.body, bytes)
    return TaskEntry(id, topic, place[0].value, place[1], row.body, row.attempts, row.failure)


def _topic_of(body: bytes) -> bytes | None:
    """Return the topic that a body names; None if it cannot be read."""
    try:
        return decode_task("", body).topic.encode()
    except UnreadableBody:
        return None
