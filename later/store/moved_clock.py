"""The clock of a `later dev`: how far it is ahead of the store's own, and what the store has to do next by it.

How far lies in the store, so that it stays moved when the daemon starts again. Scripts get the time as an argument;
only versions, which need not be times, and the keys that the store itself ends go by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from later.core.clock import Clock
from later.store.client import StoreClient
from later.store.codec import pairs, raise_errors
from later.store.holds import HELD_RANGE, UNHELD_RANGE, held_until
from later.store.keys import Bucket, Keys, Shard, meta_key
from later.store.schema import Execute
from later.store.scripts import Command

MOVED_BY = "moved_ms"
"""The field of `later:meta` with how far (ms) the clock is moved."""
SCAN_COUNT = 1000
_PARTS = 6
"""Commands of a look at one shard."""


class DueWork(NamedTuple):
    """The work that the store has for workers.

    `is_due` is true if there is something to do now; `held_until` is when the first hold of a topic ends that has a due
    task, and `next_at` when the next task is due, the next schedule fires, or the next lease, ttl or hold ends. Times
    are in ms; None: never.
    """

    is_due: bool
    held_until: int | None
    next_at: int | None


async def read_moved(execute: Execute, prefix: str) -> int:
    """Return by how much (ms) the clock of a store is moved. Raises StoreDown."""
    read: Command = ("HGET", meta_key(prefix), MOVED_BY)
    return int(raise_errors(await execute("open", [read]))[0] or 0)


class MovedClock:
    """Moves the clock of a store forward. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock

    async def move(self, by_ms: int) -> None:
        """Move the clock forward, and end as much earlier what the store itself ends. No tick may run meanwhile."""
        moved_ms = self._clock.moved_ms + by_ms
        await self._client.execute("move_clock", ("HSET", self._keys.meta, MOVED_BY, moved_ms))
        self._clock.set_moved(moved_ms)
        await self._shorten_lives(by_ms)

    async def _shorten_lives(self, by_ms: int) -> None:
        cursor = b"0"
        while True:
            cursor, names = await self._client.execute("move_clock", ("SCAN", cursor, "COUNT", SCAN_COUNT))
            lives = await self._client.execute_all("move_clock", [("PTTL", name) for name in names])
            shorten: list[Command] = [
                ("PEXPIRE", name, max(life_ms - by_ms, 1))
                for name, life_ms in zip(names, lives, strict=True)
                if life_ms > 0
            ]
            await self._client.execute_all("move_clock", shorten)
            if int(cursor) == 0:
                return

    async def look(self, now: int) -> DueWork:
        """Return what there is to do at `now` (ms) or later. Topics that are paused or pulled have nothing to do."""
        shards = self._keys.shards
        answers = await self._client.execute_all(
            "due_work", [command for shard in shards for command in _look_commands(shard)]
        )
        looks = [answers[start : start + _PARTS] for start in range(0, len(answers), _PARTS)]
        times = [int(float(score)) for look in looks for part in look[1:] for _, score in pairs(part)]
        held = [
            (shard, topic, until)
            for shard, (topics, *_) in zip(shards, looks, strict=True)
            for topic, entry in pairs(topics)
            if (until := held_until(float(entry))) is not None
        ]
        times += [until for _, _, until in held]
        first_due = await self._client.execute_all(
            "due_work",
            [("ZRANGE", shard.bucket(Bucket.DELAY, topic), 0, 0, "WITHSCORES") for shard, topic, _ in held],
        )
        due_holds = [
            until for (_, _, until), first in zip(held, first_due, strict=True) if first and float(first[1]) <= now
        ]
        return DueWork(
            is_due=any(at <= now for at in times),
            held_until=min(due_holds, default=None),
            next_at=min((at for at in times if at > now), default=None),
        )


def _look_commands(shard: Shard) -> Sequence[Command]:
    """Return the commands that read the topics that are held, and the first entry of each set of what is due."""
    firsts = (shard.wakes[Bucket.ERROR], shard.wakes[Bucket.UNACK], shard.expiry, shard.firings)
    return [
        ("ZRANGE", shard.wakes[Bucket.DELAY], *HELD_RANGE, "WITHSCORES"),
        ("ZRANGE", shard.wakes[Bucket.DELAY], *UNHELD_RANGE, "LIMIT", 0, 1, "WITHSCORES"),
        *(("ZRANGE", key, 0, 0, "WITHSCORES") for key in firsts),
    ]
