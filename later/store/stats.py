"""Statistics of the store as a whole: tasks by state and topic, due tasks, workers, memory, a topic's state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from later.core.errors import NodeDown
from later.store import scripts
from later.store.client import StoreClient, replace_missing
from later.store.codec import pairs, parse_time
from later.store.fanout import split_by_weight
from later.store.holds import held_until, is_held
from later.store.keys import SCHEMA_VERSION, Bucket, Keys, Shard
from later.store.schema import parse_info, server_version
from later.store.scripts import Command
from later.store.topic_counts import NO_TASKS, TopicCounts, TopicState
from later.store.topic_tallies import BucketCount, TopicTallies, parse_hold

HEARTBEAT_TIMEOUT_MS = 10_000
"""A worker without a heartbeat for this long counts as gone."""
FORGET_WORKER_MS = 3_600_000
"""A worker without a heartbeat for this long is not listed any more."""
SLICE = 500
"""Commands, or buckets, in one round trip: neither the store nor this process may be blocked for long."""

READ_AT_ONCE = 1280
"""Buckets in one round trip of `counts_and_holds`: those of 20 topics in 16 shards."""

Item = TypeVar("Item")


class ServerFacts(NamedTuple):
    """The server's name, version and memory (bytes; a maximum of 0 is none), and how many connections it takes at most.

    That is 0 where it does not tell it. In a cluster, the oldest version of its primaries, their memory in all, the
    fewest connections, and how many of them answer.
    """

    name: str
    version: str
    memory: int
    max_memory: int
    max_clients: int = 0
    servers: int = 1


class Stats:
    """Reads statistics, and keeps the workers' heartbeats. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def ping(self) -> None:
        """Check that the store answers and accepts writes: a full one refuses even to write what is there already.

        Of a cluster, one shard is enough.
        """
        ping: Command = ("HSETNX", self._keys.meta, "schema", SCHEMA_VERSION)
        try:
            await self._client.execute("ping", ping)
        except NodeDown:  # perhaps others are there
            await self._client.execute_available("ping", [("EXISTS", s.pool) for s in self._keys.shards], missing=0)

    async def counts(self, now: int) -> dict[str, TopicCounts]:
        """Return the counts of every topic that has tasks, as `tally` finds them."""
        return dict((await self.tally(now, _go_on)).items())

    async def tally(self, now: int, pace: Callable[[int], Awaitable[None]]) -> TopicTallies:
        """Count the tasks of every topic that has any, summed over the shards that are there.

        Due tasks are those by `now` (ms).
        Only buckets whose wake set names the topic are counted, in slices: many topics must block neither the store nor
        this process. `pace` is awaited after each slice, with the number of its buckets.
        """
        tallies = TopicTallies()
        for wake_sets in _split([wake_set for wake_set in await self._wake_sets() if wake_set.size]):
            seen: dict[_WakeSet, set[bytes]] = {wake_set: set() for wake_set in wake_sets}
            async for scanned in self._scan(wake_sets):
                found: list[_BucketTopics] = []
                for wake_set, entries in scanned:
                    if wake_set.bucket is Bucket.DELAY:
                        tallies.add_holds(entries.items())
                    new = [topic for topic in entries if topic not in seen[wake_set]]  # a scan may return one twice
                    seen[wake_set].update(new)
                    found += [_BucketTopics(wake_set.shard, wake_set.bucket, some) for some in _slices(new)]
                for targets in _split(found):
                    await self._count(targets, now, tallies)
                    await pace(sum(target.weight for target in targets))
        return tallies

    async def _count(self, targets: Sequence[_BucketTopics], now: int, tallies: TopicTallies) -> None:
        """Count the tasks of these topics in these buckets."""
        commands = [
            scripts.COUNT.call([target.shard.bucket(target.bucket, topic) for topic in target.topics], [now])
            for target in targets
        ]
        answers = await self._client.execute_optional("stats", commands, missing=None)
        for target, answer in zip(targets, answers, strict=True):
            if answer is not None:
                tallies.add(target.topics, target.bucket, _parse_counts(answer))

    async def counts_for(self, topics: Sequence[str], now: int) -> dict[str, TopicCounts]:
        """Return the counts of these topics, summed over the shards, each shard's at one moment."""
        counts = dict.fromkeys(topics, NO_TASKS)
        for targets in _split(self._split_by_shard([*counts], SLICE)):
            answers = await self._client.execute_all("stats", [target.count_command(now) for target in targets])
            _add_counts(counts, targets, answers)
        return counts

    async def counts_and_holds(
        self, topics: Sequence[str], now: int, where: Mapping[str, Sequence[Shard]] | None = None
    ) -> dict[str, TopicCounts]:
        """Return the counts of these topics with their holds, summed over the shards that are there.

        It takes one round trip for each `READ_AT_ONCE` buckets. Only those whose wake set names the topic are counted:
        most topics have tasks in few of them. With `where`, only the shards that it names for a topic are asked.
        """
        counts = dict.fromkeys(topics, NO_TASKS)
        holds: dict[str, float] = {}
        targets = self._split_by_shard([*counts], SLICE) if where is None else _split_where(where, [*counts])
        for some in split_by_weight(targets, READ_AT_ONCE, lambda target: target.weight):
            commands = [target.count_topics_command(now) for target in some]
            answers = await self._client.execute_optional("stats", commands, missing=[])
            for target, answer in zip(some, answers, strict=True):
                _add_rows(counts, holds, target.topics, answer)
        return {
            topic: count._replace(hold=parse_hold(topic, holds[topic])) if topic in holds else count
            for topic, count in counts.items()
        }

    def most_at_once(self) -> int:
        """Return how many topics `counts_and_holds` reads in one round trip."""
        return max(READ_AT_ONCE // (len(Bucket) * len(self._keys.shards)), 1)

    async def topics_by_bucket(self) -> AsyncIterator[tuple[Shard, Bucket, list[bytes]]]:
        """Yield the topics of each bucket of each shard that has tasks of them; a topic may be yielded again.

        Wake sets that were empty a moment ago are scanned too: those of a shard are mostly read in one round trip, so
        that a topic is not missed whose only task moves from one bucket to the next. It ends with NodeDown if a shard
        is away.
        """
        with self._client.away_tags.needing_all():
            for wake_sets in _split(await self._wake_sets()):
                async for scanned in self._scan(wake_sets):
                    for wake_set, entries in scanned:
                        yield wake_set.shard, wake_set.bucket, [*entries]

    async def topic_state(self, topic: str, now: int) -> TopicState:
        """Return a topic's state: its counts, the longest hold, the earliest due time; and the workers.

        It is that of the shards that are there, in one round trip.
        """
        name, shards = topic.encode(), self._keys.shards
        keys = [(shard.bucket(Bucket.DELAY, name), shard.wakes[Bucket.DELAY]) for shard in shards]
        targets = [_ShardTopics(shard, [topic]) for shard in shards]
        workers, *answers = await self._client.execute_available(
            "explain",
            [
                self._workers_command(),
                *(scripts.TOPIC_STATE.call(some, [name]) for some in keys),
                *(target.count_command(now) for target in targets),
            ],
            missing=[],
        )
        states, counts = [state for state in answers[: len(shards)] if state], {topic: NO_TASKS}
        _add_counts(counts, targets, answers[len(shards) :])
        holds = [held_until(float(entry)) for entry, _ in states if entry and is_held(float(entry))]
        dues = [due_at for _, first in states if (due_at := parse_time(first)) is not None]
        return TopicState(
            counts=counts[topic],
            paused=None in holds,
            held_until=max((until for until in holds if until is not None), default=None),
            next_due_at=min(dues, default=None),
            heartbeats=[int(float(at)) for _, at in pairs(workers)],
        )

    async def remembered_ids(self) -> int:
        """Return how many ids of ended tasks the shards that are there remember."""
        return sum(await self._available([("ZCARD", shard.done) for shard in self._keys.shards], missing=0))

    async def task_count(self) -> int:
        """Return how many tasks the pools hold of the shards that are there."""
        return sum(await self._available([("HLEN", shard.pool) for shard in self._keys.shards], missing=0))

    async def server_facts(self) -> ServerFacts:
        """Return the facts about the server, or about the primaries of a cluster that answer."""
        infos = [parse_info(info) for (info,) in await self._ask_servers([("INFO",)])]
        name, version, _ = min(map(server_version, infos), key=lambda found: found[1])
        most = [int(info.get("maxmemory", 0)) for info in infos]
        return ServerFacts(
            name=name,
            version=".".join(str(part) for part in version),
            memory=sum(int(info.get("used_memory", 0)) for info in infos),
            max_memory=sum(most) if all(most) else 0,
            max_clients=min(int(info.get("maxclients", 0)) for info in infos),
            servers=len(infos),
        )

    async def _ask_servers(self, commands: Sequence[Command]) -> list[list[Any]]:
        """Return the answers of each server to commands, the first of which each of them has answered.

        Raises:
            StoreDown: none has.
        """
        told = [answers for _, answers in await self._client.execute_on_each_server("stats", commands)]
        answered = [answers for answers in told if not isinstance(answers[0], Exception)]
        if not answered:
            raise told[0][0]
        return answered

    async def persistence(self) -> str:
        """Return how the server persists, for people.

        A hosted server, or one whose user may not ask, hides when it syncs its append-only file.
        """
        told = await self._ask_servers([("INFO",), ("CONFIG", "GET", "appendfsync")])
        return "; ".join(sorted({_persistence(parse_info(info), answer) for info, answer in told}))

    async def heartbeat(self, instance: str, now: int) -> None:
        """Record that this worker is alive."""
        await self._client.execute("stats", heartbeat_command(self._keys, instance, now))

    async def remove_worker(self, instance: str) -> None:
        """Record that this worker has stopped."""
        await self._client.execute("stats", ("ZREM", self._keys.workers, instance))

    async def workers(self) -> dict[str, int]:
        """Return the time of each worker's last heartbeat, in ms."""
        flat = await self._client.execute("stats", self._workers_command())
        return {name.decode(): int(float(at)) for name, at in pairs(flat)}

    def _workers_command(self) -> Command:
        return ("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES")

    def _split_by_shard(self, topics: Sequence[str], buckets: int) -> list[_ShardTopics]:
        """Return the topics with each shard, so many buckets in one command at most."""
        slices = _slices(topics, max(buckets // len(Bucket), 1))
        return [_ShardTopics(shard, names) for names in slices for shard in self._keys.shards]

    async def _wake_sets(self) -> list[_WakeSet]:
        buckets = [(shard, bucket) for shard in self._keys.shards for bucket in Bucket]
        sizes = await self._available([("ZCARD", shard.wakes[bucket]) for shard, bucket in buckets], missing=0)
        return [_WakeSet(shard, bucket, size) for (shard, bucket), size in zip(buckets, sizes, strict=True)]

    async def _scan(self, wake_sets: Sequence[_WakeSet]) -> AsyncIterator[list[tuple[_WakeSet, dict[bytes, float]]]]:
        """Yield the entries of these wake sets, by round trip. Reads by rank would miss some: workers rewrite them."""
        cursors = dict.fromkeys(wake_sets, 0)
        while cursors:
            scans: list[Command] = [
                ("ZSCAN", wake_set.shard.wakes[wake_set.bucket], cursor, "COUNT", SLICE)
                for wake_set, cursor in cursors.items()
            ]
            found = await self._client.execute_optional("stats", scans, missing=(0, []))
            answers = list(zip(cursors, found, strict=True))
            yield [(wake_set, dict(entries)) for wake_set, (_, entries) in answers]
            cursors = {wake_set: cursor for wake_set, (cursor, _) in answers if cursor}

    async def _available(self, commands: Sequence[Command], missing: Any) -> list[Any]:
        """Return the commands' answers, with `missing` for each one whose node is away."""
        answers: list[Any] = []
        for some in _slices(commands):
            answers += await self._client.execute_each("stats", some)
        return replace_missing(answers, missing)


def _persistence(info: dict[str, str], answer: Any) -> str:
    """Return how a server persists. `answer` is what CONFIG GET says of appendfsync."""
    appendfsync = answer[1].decode() if isinstance(answer, list) and len(answer) == 2 else "unknown"
    if info.get("aof_enabled") == "1":
        failing = "" if info.get("aof_last_write_status", "ok") == "ok" else ", failing"
        return f"appendonly, appendfsync {appendfsync}{failing}"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "snapshots, failing"
    return "snapshots or none: what was created since the last one is lost with the server"


def heartbeat_command(keys: Keys, instance: str, now: int) -> Command:
    """Return the command that records that a worker is alive ("": none is), and forgets those that are gone."""
    return scripts.HEARTBEAT.call([keys.workers], [instance, now, now - FORGET_WORKER_MS, now + FORGET_WORKER_MS])


class _WakeSet(NamedTuple):
    """One bucket's wake set in one shard, and how many topics it names."""

    shard: Shard
    bucket: Bucket
    size: int

    @property
    def weight(self) -> int:
        return max(self.size, 1)


class _BucketTopics(NamedTuple):
    """Topics of one bucket of one shard."""

    shard: Shard
    bucket: Bucket
    topics: Sequence[bytes]

    @property
    def weight(self) -> int:
        return len(self.topics)


class _ShardTopics(NamedTuple):
    """Topics of one shard, each with all its buckets."""

    shard: Shard
    topics: Sequence[str]

    @property
    def weight(self) -> int:
        return len(Bucket) * len(self.topics)

    def count_command(self, now: int) -> Command:
        """Return the command that counts their tasks."""
        return scripts.COUNT.call([key for topic in self.topics for key in self.shard.buckets(topic.encode())], [now])

    def count_topics_command(self, now: int) -> Command:
        """Return the command that counts their tasks in the buckets that have any, and reads what holds them."""
        buckets = [key for topic in self.topics for key in self.shard.buckets(topic.encode())]
        return scripts.COUNT_TOPICS.call([*self.shard.wakes.values(), *buckets], [now, *self.topics])


Weighed = TypeVar("Weighed", _WakeSet, _BucketTopics, _ShardTopics)


def _add_counts(counts: dict[str, TopicCounts], targets: Sequence[_ShardTopics], answers: Sequence[Any]) -> None:
    """Add what was counted of the topics in each shard."""
    for target, answer in zip(targets, answers, strict=True):
        for topic, of_topic in zip(target.topics, _slices(_parse_counts(answer), len(Bucket)), strict=bool(answer)):
            delay, unack, error, dead = of_topic
            oldest = delay.first_due_at if delay.due else None
            found = TopicCounts(delay.size, unack.size, error.size, dead.size, delay.due, oldest)
            counts[topic] = counts[topic].plus(found)


def group_by_shard(where: Mapping[str, Sequence[Shard]], topics: Collection[str]) -> dict[Shard, list[str]]:
    """Return these topics by the shards that `where` names for them."""
    grouped: dict[Shard, list[str]] = {}
    for topic in topics:
        for shard in where.get(topic, ()):
            grouped.setdefault(shard, []).append(topic)
    return grouped


def _split_where(where: Mapping[str, Sequence[Shard]], topics: Collection[str]) -> list[_ShardTopics]:
    grouped = group_by_shard(where, topics).items()
    most = SLICE // len(Bucket)
    return [_ShardTopics(shard, some) for shard, names in grouped for some in _slices(names, most)]


def _add_rows(
    counts: dict[str, TopicCounts], holds: dict[str, float], topics: Sequence[str], answer: Sequence[Any]
) -> None:
    """Add what `count_topics` answered: the counts of topics in a shard; and to `holds`, of each topic the longest."""
    for position, entry, delay, due, first_due_at, unack, error, dead in _slices(answer, 8):
        topic = topics[position]
        found = TopicCounts(delay, unack, error, dead, due, first_due_at if due else None)
        counts[topic] = counts[topic].plus(found)
        if entry and is_held(score := float(entry)):
            holds[topic] = min(score, holds.get(topic, score))


async def _go_on(buckets: int) -> None:
    """Let a count go on at once."""


def _parse_counts(answer: Sequence[int]) -> list[BucketCount]:
    return list(map(BucketCount, answer[::3], answer[1::3], answer[2::3]))


def _slices(items: Sequence[Item], size: int = SLICE) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _split(items: Sequence[Weighed]) -> Iterator[list[Weighed]]:
    """Yield the items in order, in lists that weigh no more than a slice, or of one item."""
    return split_by_weight(items, SLICE, lambda item: item.weight)
