"""Figures of the store as a whole: tasks by state and topic, what is overdue, who is alive, how full it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from later.store.client import Client
from later.store.keys import SCHEMA_VERSION, Bucket, Keys
from later.store.opening import server_info, server_version
from later.store.scripts import Command

FORGET_WORKER_MS = 3_600_000
"""A worker that has not beaten for so long is not shown any more."""
PIPELINE = 1000
"""Commands sent at once: a store with many topics must not wait for one long pipeline."""


class TopicCounts(NamedTuple):
    """One topic's tasks by bucket, how many of them are due and not claimed, and the due time of the oldest."""

    delay: int
    unack: int
    error: int
    dead: int
    due: int
    oldest_due_at: int | None

    def plus(self, other: TopicCounts) -> TopicCounts:
        oldest = [at for at in (self.oldest_due_at, other.oldest_due_at) if at is not None]
        return TopicCounts(
            self.delay + other.delay,
            self.unack + other.unack,
            self.error + other.error,
            self.dead + other.dead,
            self.due + other.due,
            min(oldest, default=None),
        )


NO_TASKS = TopicCounts(0, 0, 0, 0, 0, None)


class ServerFacts(NamedTuple):
    """What the store's server says of itself; bytes."""

    name: str
    version: str
    memory: int
    max_memory: int
    persistence: str


class Census:
    """Reads, but for the beats of workers. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def ping(self) -> None:
        """Does the store answer, and take tasks? Writes what stands there already: a full one refuses even that."""
        await self._client.one("ping", ("HSETNX", self._keys.meta, "schema", SCHEMA_VERSION))

    async def topics(self) -> list[str]:
        """Every topic that has a task in some bucket."""
        commands: list[Command] = [("ZRANGE", key, 0, -1) for s in self._keys.shards for key in s.wakes.values()]
        return sorted({topic.decode() for answer in await self._all(commands) for topic in answer})

    async def counts(self, topics: Sequence[str], now: int) -> dict[str, TopicCounts]:
        """Each topic's tasks, summed over the shards; what is due, by `now` (ms)."""
        per_shard = [self._count(topic.encode(), now) for topic in topics]
        answers = await self._all([command for commands in per_shard for command in commands])
        sums = dict.fromkeys(topics, NO_TASKS)
        width = len(Bucket) + 2
        for position in range(0, len(answers), width):
            topic = topics[position // (width * len(self._keys.shards))]
            delay, unack, error, dead, due, oldest = answers[position : position + width]
            oldest_at = int(float(oldest[1])) if oldest else None
            sums[topic] = sums[topic].plus(TopicCounts(delay, unack, error, dead, due, oldest_at))
        return sums

    def _count(self, topic: bytes, now: int) -> list[Command]:
        commands: list[Command] = []
        for shard in self._keys.shards:
            delay = shard.bucket(Bucket.DELAY, topic)
            commands += [("ZCARD", key) for key in shard.buckets(topic)]
            commands += [
                ("ZCOUNT", delay, "-inf", now),
                ("ZRANGEBYSCORE", delay, "-inf", now, "WITHSCORES", "LIMIT", 0, 1),
            ]
        return commands

    async def remembered(self) -> int:
        """How many ids of ended tasks are remembered."""
        return sum(await self._all([("ZCARD", shard.done) for shard in self._keys.shards]))

    async def tasks(self) -> int:
        """How many tasks the pools hold."""
        return sum(await self._all([("HLEN", shard.pool) for shard in self._keys.shards]))

    async def server(self) -> ServerFacts:
        info = await server_info(self._client.run)
        name, version, _ = server_version(info)
        return ServerFacts(
            name=name,
            version=".".join(str(part) for part in version),
            memory=int(info.get("used_memory", 0)),
            max_memory=int(info.get("maxmemory", 0)),
            persistence=_persistence(info, await self._appendfsync()),
        )

    async def _appendfsync(self) -> str:
        """When the server syncs what it appends; hosted ones do not say."""
        answer = (await self._client.run("census", [("CONFIG", "GET", "appendfsync")]))[0]
        return answer[1].decode() if isinstance(answer, list) and len(answer) == 2 else "unknown"

    async def beat(self, instance: str, now: int) -> None:
        """Say that this worker is alive."""
        stale = now - FORGET_WORKER_MS
        await self._all(
            [
                ("ZREMRANGEBYSCORE", self._keys.workers, "-inf", stale),
                ("ZADD", self._keys.workers, now, instance),
            ]
        )

    async def leave(self, instance: str) -> None:
        """Say that this worker has gone."""
        await self._all([("ZREM", self._keys.workers, instance)])

    async def workers(self) -> dict[str, int]:
        """Each instance's last beat, in ms."""
        flat = (await self._all([("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES")]))[0]
        return {name.decode(): int(float(at)) for name, at in zip(flat[::2], flat[1::2], strict=True)}

    async def _all(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(commands), PIPELINE):
            answers += await self._client.all("census", commands[start : start + PIPELINE])
        return answers


def _persistence(info: dict[str, str], appendfsync: str) -> str:
    if info.get("aof_enabled") == "1":
        failing = "" if info.get("aof_last_write_status", "ok") == "ok" else ", failing"
        return f"appendonly, appendfsync {appendfsync}{failing}"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "snapshots, failing"
    return "snapshots or none: what was created since the last one is lost with the server"
