"""Dead tasks brought back, by what they are of and how they died: slice after slice, and to be begun again anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from later.core.edit import renew_ttl
from later.core.task import Task, encode, unpack_id
from later.core.validation import MAX_AHEAD_MS
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, decode_task
from later.store.cursor import BucketEntry
from later.store.dead import DeadCursor, raise_errors
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Argument, Command
from later.store.types import BucketRange, MoveResult


class Redrive(NamedTuple):
    """A dead task, and what it is brought back as. `died_at` None: whenever it died.

    `seen` is the body that was read (None: whatever it is); `task` the new one (None: it stays).
    """

    packed: bytes
    died_at: int | None
    due_at: int
    seen: bytes | None
    task: Task | None


def build_redrive(entry: BucketEntry, raw: bytes, due_at: int, now: int) -> Redrive:
    """Of a task that was met among the dead. Its ttl counts from now; only where it has one is its body another."""
    task = decode_task(unpack_id(entry.packed), raw)
    if not isinstance(task, Task) or task.expires_at is None:
        return Redrive(entry.packed, entry.score, due_at, None, None)
    return Redrive(entry.packed, entry.score, due_at, raw, renew_ttl(task, now))


def redrive_command(shard: Shard, topic: bytes, redrives: Sequence[Redrive]) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry, *shard.buckets(topic)]
    keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.DEAD]]
    arguments: list[Argument] = [topic]
    for packed, died_at, due_at, seen, task in redrives:
        ttl_end = None if task is None else task.expires_at
        arguments += [packed, "" if died_at is None else died_at, due_at, seen or b""]
        arguments += [b"" if task is None else encode(task), "" if ttl_end is None else ttl_end]
    return scripts.REDRIVE.call(keys, arguments)


class Redrives:
    """Brings the dead of a topic back."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def redrive(
        self, dead: BucketRange, *, reason: str | None, now: int, rate: float | None, limit: int | None
    ) -> MoveResult:
        """The dead of a stretch, of one reason or (None) of any, `limit` at most → delay, due and their ttl from `now`.

        Who died first comes first; with a `rate` they are due so many a second. Only those are taken that died before
        `now`, so that nobody is taken twice who dies again. Raises StoreDown: some may be back, the rest is as it was.
        """
        before = now if dead.before is None else min(dead.before, now)
        walk = DeadCursor(self._client, self._keys, dead._replace(before=before), reason, MAX_BODIES)
        moved = sent = 0
        while limit is None or moved < limit:
            entries = await walk.fetch(MAX_BODIES if limit is None else limit - moved)
            if not entries:
                return MoveResult(moved, more=False)
            dues = [(entry, now + _offset(sent + place, rate)) for place, entry in enumerate(entries)]
            moved += await self._redrive(dead.topic.encode(), dues, now)
            sent += len(entries)
        return MoveResult(moved, more=bool(await walk.fetch(1)))

    async def _redrive(self, topic: bytes, dues: Sequence[tuple[BucketEntry, int]], now: int) -> int:
        """How many came back; the others had moved, or died again, since they were met."""
        shards = self._keys.shards

        def read(shard: Shard, _: bytes, some: list[tuple[BucketEntry, int]]) -> Command:
            return ("HMGET", shard.pool, *(entry.packed for entry, _ in some))

        def write(shard: Shard, topic: bytes, some: list[tuple[int, Redrive]]) -> Command:
            return redrive_command(shard, topic, [redrive for _, redrive in some])

        raws = raise_errors(
            await fan_out(self._client, "redrive", dues, lambda due: (shards[due[0].shard], topic), read)
        )
        redrives = [
            (entry.shard, build_redrive(entry, raw, due_at, now))
            for (entry, due_at), raw in zip(dues, raws, strict=True)
            if raw is not None
        ]
        answers = await fan_out(
            self._client, "redrive", redrives, lambda some: (shards[some[0]], topic), write, read=lambda rows: rows[0]
        )
        return raise_errors(answers).count(1)


def _offset(place: int, rate: float | None) -> int:
    """By how much (ms) the so-manieth is due later than the first."""
    return 0 if rate is None else int(min(place * 1000 / rate, MAX_AHEAD_MS))
