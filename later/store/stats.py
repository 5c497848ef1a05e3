"""Figures of the store as a whole: tasks by state and topic, what is overdue, who is alive, how full it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from later.store import scripts
from later.store.client import Client
from later.store.codec import parse_time
from later.store.fanout import split_by_weight
from later.store.holds import held_until, is_held
from later.store.keys import SCHEMA_VERSION, Bucket, Keys, Shard
from later.store.schema import server_info, server_version
from later.store.scripts import Command
from later.store.types import TopicState

FORGET_WORKER_MS = 3_600_000
"""A worker that has not beaten for so long is not shown any more."""
SLICE = 500
"""Commands sent at once, buckets counted at once: neither the store nor this process is to be held for long."""
WHOLE = SLICE // len(Bucket)
"""Topics counted at once where each is counted in all its buckets."""
NUMBERS = 3 * len(Bucket)
"""What COUNT answers of one of these."""


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


@dataclass(kw_only=True, slots=True)
class _Tally:
    """One topic's counts while they are summed up; sizes in the order of `Bucket`."""

    sizes: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    due: int = 0
    oldest_due_at: int | None = None

    def add_due(self, due: int, oldest_due_at: int) -> None:
        self.due += due
        known = self.oldest_due_at
        self.oldest_due_at = oldest_due_at if known is None else min(known, oldest_due_at)

    def counts(self) -> TopicCounts:
        delay, unack, error, dead = self.sizes
        return TopicCounts(delay, unack, error, dead, self.due, self.oldest_due_at)


class _WakeSet(NamedTuple):
    """One bucket's wake set in one shard, and how many topics it names."""

    shard: Shard
    bucket: Bucket
    size: int

    @property
    def key(self) -> bytes:
        return self.shard.wakes[self.bucket]

    @property
    def weight(self) -> int:
        return max(self.size, 1)


class _Named(NamedTuple):
    """Topics that one wake set names."""

    shard: Shard
    bucket: Bucket
    topics: Sequence[bytes]

    @property
    def weight(self) -> int:
        return len(self.topics)

    def call(self, now: int) -> Command:
        return scripts.COUNT.call([self.shard.bucket(self.bucket, topic) for topic in self.topics], [now])


class _Whole(NamedTuple):
    """Topics of one shard, each with all its buckets."""

    shard: Shard
    topics: Sequence[str]

    @property
    def weight(self) -> int:
        return len(Bucket) * len(self.topics)

    def call(self, now: int) -> Command:
        return scripts.COUNT.call([key for topic in self.topics for key in self.shard.buckets(topic.encode())], [now])


Item = TypeVar("Item")
Weighed = TypeVar("Weighed", _WakeSet, _Named, _Whole)


class ServerFacts(NamedTuple):
    """What the store's server says of itself; bytes."""

    name: str
    version: str
    memory: int
    max_memory: int
    persistence: str


class Stats:
    """Reads, but for the beats of workers. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def ping(self) -> None:
        """Does the store answer, and take tasks? Writes what stands there already: a full one refuses even that."""
        await self._client.execute("ping", ("HSETNX", self._keys.meta, "schema", SCHEMA_VERSION))

    async def counts(self, now: int) -> dict[str, TopicCounts]:
        """The tasks of every topic that has some, summed over the shards; what is due, by `now` (ms).

        Looks only where a wake set names the topic, and goes on in slices: neither the store nor this process must
        be held by many topics.
        """
        tallies: dict[bytes, _Tally] = {}
        for wake_sets in _packed([wake_set for wake_set in await self._wake_sets() if wake_set.size]):
            for some in _packed(await self._named(wake_sets)):
                answers = await self._client.execute_all("census", [named.call(now) for named in some])
                for named, answer in zip(some, answers, strict=True):
                    _add(tallies, named, answer)
        counts: dict[str, TopicCounts] = {}
        for names in _slices([*tallies]):
            counts |= {topic.decode(): tallies[topic].counts() for topic in names}
            await asyncio.sleep(0)
        return counts

    async def topic_names(self) -> AsyncIterator[set[str]]:
        """The topics that have tasks, in pieces, as they are found; one piece may name what another did.

        A wake set is looked into though it was empty a moment ago: those of a shard are mostly read in one breath, so
        that a topic whose only task goes from one bucket to the next is not missed.
        """
        for wake_sets in _packed(await self._wake_sets()):
            async for scanned in self._scanned(wake_sets):
                yield {topic.decode() for _, topics in scanned for topic in topics}

    async def topics_by_bucket(self) -> AsyncIterator[tuple[Shard, Bucket, list[bytes]]]:
        """The topics of each bucket of each shard that has tasks of them, in pieces; one may be named twice."""
        for wake_sets in _packed(await self._wake_sets()):
            async for scanned in self._scanned(wake_sets):
                for place, topics in scanned:
                    yield place.shard, place.bucket, topics

    async def topic_state(self, topic: str) -> TopicState:
        """Return how a topic stands over all shards: the longest hold, the earliest due time."""
        name = topic.encode()
        delays = [(shard.bucket(Bucket.DELAY, name), shard.wakes[Bucket.DELAY]) for shard in self._keys.shards]
        answers = await self._client.execute_all("explain", [scripts.TOPIC_STATE.call(keys, [name]) for keys in delays])
        holds = [held_until(float(entry)) for entry, _ in answers if entry and is_held(float(entry))]
        dues = [due_at for _, first in answers if (due_at := parse_time(first)) is not None]
        return TopicState(
            paused=None in holds,
            held_until=max((until for until in holds if until is not None), default=None),
            next_due_at=min(dues, default=None),
        )

    async def counts_for(self, topics: Sequence[str], now: int) -> dict[str, TopicCounts]:
        """The tasks of these topics, summed over the shards, each shard's at one moment; what is due, by `now` (ms)."""
        counts = dict.fromkeys(topics, NO_TASKS)
        pieces = [_Whole(shard, some) for some in _slices([*counts], WHOLE) for shard in self._keys.shards]
        for some in _packed(pieces):
            answers = await self._client.execute_all("census", [piece.call(now) for piece in some])
            for piece, answer in zip(some, answers, strict=True):
                for topic, numbers in zip(piece.topics, _slices(answer, NUMBERS), strict=True):
                    counts[topic] = counts[topic].plus(_whole_counts(numbers))
        return counts

    async def _wake_sets(self) -> list[_WakeSet]:
        places = [(shard, bucket) for shard in self._keys.shards for bucket in Bucket]
        sizes = await self._all([("ZCARD", shard.wakes[bucket]) for shard, bucket in places])
        return [_WakeSet(*place, size) for place, size in zip(places, sizes, strict=True)]

    async def _named(self, wake_sets: Sequence[_WakeSet]) -> list[_Named]:
        """The topics in these wake sets, in slices."""
        found: dict[_WakeSet, dict[bytes, None]] = {wake_set: {} for wake_set in wake_sets}
        async for scanned in self._scanned(wake_sets):
            for place, topics in scanned:
                found[place] |= dict.fromkeys(topics)  # a scan may show one twice
        slices = [(place, some) for place, topics in found.items() for some in _slices([*topics])]
        return [_Named(place.shard, place.bucket, some) for place, some in slices]

    async def _scanned(self, wake_sets: Sequence[_WakeSet]) -> AsyncIterator[list[tuple[_WakeSet, list[bytes]]]]:
        """What these wake sets name, one round trip after the other. Ranks would shift while workers rewrite them."""
        cursors = dict.fromkeys(wake_sets, 0)
        while cursors:
            scans: list[Command] = [("ZSCAN", place.key, at, "COUNT", SLICE) for place, at in cursors.items()]
            answers = list(zip(cursors, await self._client.execute_all("census", scans), strict=True))
            yield [(place, [topic for topic, _ in entries]) for place, (_, entries) in answers]
            cursors = {place: at for place, (at, _) in answers if at}

    async def remembered_ids(self) -> int:
        """How many ids of ended tasks are remembered."""
        return sum(await self._all([("ZCARD", shard.done) for shard in self._keys.shards]))

    async def task_count(self) -> int:
        """How many tasks the pools hold."""
        return sum(await self._all([("HLEN", shard.pool) for shard in self._keys.shards]))

    async def server_facts(self) -> ServerFacts:
        info = await server_info(self._client.execute_each)
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
        answer = (await self._client.execute_each("census", [("CONFIG", "GET", "appendfsync")]))[0]
        return answer[1].decode() if isinstance(answer, list) and len(answer) == 2 else "unknown"

    async def heartbeat(self, instance: str, now: int) -> None:
        """Say that this worker is alive."""
        stale = now - FORGET_WORKER_MS
        await self._all(
            [
                ("ZREMRANGEBYSCORE", self._keys.workers, "-inf", stale),
                ("ZADD", self._keys.workers, now, instance),
            ]
        )

    async def remove_worker(self, instance: str) -> None:
        """Say that this worker has gone."""
        await self._all([("ZREM", self._keys.workers, instance)])

    async def workers(self) -> dict[str, int]:
        """Each instance's last beat, in ms."""
        flat = (await self._all([("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES")]))[0]
        return {name.decode(): int(float(at)) for name, at in zip(flat[::2], flat[1::2], strict=True)}

    async def _all(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        for some in _slices(commands):
            answers += await self._client.execute_all("census", some)
        return answers


def _slices(items: Sequence[Item], size: int = SLICE) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _packed(items: Sequence[Weighed]) -> Iterator[list[Weighed]]:
    """The items in order, as many at once as weigh no more than a slice; one at least."""
    return split_by_weight(items, SLICE, lambda item: item.weight)


def _add(tallies: dict[bytes, _Tally], named: _Named, answer: Sequence[int]) -> None:
    place = [*Bucket].index(named.bucket)
    for topic, size, passed, first in zip(named.topics, answer[::3], answer[1::3], answer[2::3], strict=True):
        tally = tallies.get(topic) or tallies.setdefault(topic, _Tally())
        tally.sizes[place] += size
        if passed and named.bucket is Bucket.DELAY:
            tally.add_due(passed, first)


def _whole_counts(numbers: Sequence[int]) -> TopicCounts:
    """One topic's counts from what COUNT answers of all its buckets."""
    delay, unack, error, dead = numbers[::3]
    _, due, oldest, *_ = numbers
    return TopicCounts(delay, unack, error, dead, due, oldest if due else None)


def _persistence(info: dict[str, str], appendfsync: str) -> str:
    if info.get("aof_enabled") == "1":
        failing = "" if info.get("aof_last_write_status", "ok") == "ok" else ", failing"
        return f"appendonly, appendfsync {appendfsync}{failing}"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "snapshots, failing"
    return "snapshots or none: what was created since the last one is lost with the server"
