"""How tasks end by themselves: a ttl that ends while they wait, and the dead, who are kept for a time only."""

from __future__ import annotations

from collections.abc import Sequence

from later.core.errors import LaterError
from later.core.retry import Failure, encode_failure
from later.core.task import Task, pack_id, unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, as_bools, decode_task, parse_failure
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard, parse_expiry_member
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import DeadTask, DueTopic, ExpiredTask


class Expiry:
    """Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._cursors = dict.fromkeys(range(len(keys.shards)), 0)

    async def expired_tasks(self, now: int) -> list[ExpiredTask]:
        """Tasks whose ttl has ended, at most 500 of each shard."""
        found = await self._client.execute_all(
            "expiring",
            [("ZRANGEBYSCORE", shard.expiry, "-inf", now, "LIMIT", 0, MAX_TASKS) for shard in self._keys.shards],
        )
        places = [(shard, member) for shard, some in zip(self._keys.shards, found, strict=True) for member in some]
        failures = await fan_out(self._client, "expiring", places, lambda place: (place[0], b""), _failures)
        return [
            _expiring(shard, member, failure)
            for (shard, member), failure in zip(places, failures, strict=True)
            if not isinstance(failure, LaterError)
        ]

    async def expire(self, deaths: Sequence[tuple[ExpiredTask, Failure]], now: int) -> list[bool | LaterError]:
        """Let tasks die that wait, delay or error → dead; False for one that is in flight, or not there any more."""

        def call(shard: Shard, topic: bytes, some: list[tuple[ExpiredTask, Failure]]) -> Command:
            delay, unack, error, dead = shard.buckets(topic)
            keys = [shard.outcome, delay, unack, error, dead]
            keys += [shard.wakes[bucket] for bucket in (Bucket.DELAY, Bucket.ERROR, Bucket.DEAD)] + [shard.expiry]
            arguments: list[Argument] = [topic, now]
            for task, failure in some:
                arguments += [pack_id(task.id), task.stored_failure, encode_failure(failure)]
            return scripts.EXPIRE.call(keys, arguments)

        return as_bools(await fan_out(self._client, "expire", deaths, lambda death: self._lane(death[0]), call))

    async def topics_with_dead(self, latest: int, limit: int) -> list[DueTopic]:
        """Topics in which somebody had died by `latest` (ms), a part of them: all come up one call after the other."""
        firsts = await self._client.execute_all(
            "sweep",
            [("ZRANGE", shard.wakes[Bucket.DEAD], 0, 0, "WITHSCORES") for shard in self._keys.shards],
        )
        ripe = [
            shard
            for shard, first in zip(self._keys.shards, firsts, strict=True)
            if first and int(float(first[1])) <= latest
        ]
        scans: list[Command] = [
            ("ZSCAN", shard.wakes[Bucket.DEAD], self._cursors[shard.index], "COUNT", limit) for shard in ripe
        ]
        self._cursors = dict.fromkeys(self._cursors, 0)  # where nobody is ripe, the next walk begins anew
        wakes: list[DueTopic] = []
        for shard, (cursor, entries) in zip(ripe, await self._client.execute_all("sweep", scans), strict=True):
            self._cursors[shard.index] = int(cursor)
            wakes += [DueTopic(int(float(at)), topic.decode(), shard.index) for topic, at in entries]
        return [wake for wake in wakes if wake.at <= latest]

    def is_at_the_start(self) -> bool:
        """Have all topics come up since the first?"""
        return not any(self._cursors.values())

    async def dead_tasks(self, wake: DueTopic, latest: int) -> list[DeadTask]:
        """Tasks of a topic that had died by `latest` (ms), the first of them."""
        shard = self._keys.shards[wake.shard]
        bucket = shard.bucket(Bucket.DEAD, wake.topic.encode())
        look: Command = ("ZRANGEBYSCORE", bucket, "-inf", latest, "LIMIT", 0, MAX_BODIES)
        packed = await self._client.execute("sweep", look)
        if not packed:
            return []
        bodies = await self._client.execute("sweep", ("HMGET", shard.pool, *packed))
        return [_dead(wake, id, body) for id, body in zip(packed, bodies, strict=True)]

    async def sweep(self, dead: Sequence[DeadTask], latest: int, remember_until: int | None) -> list[bool | LaterError]:
        """Forget tasks that had died by `latest`, dead → gone; ids that callers chose are remembered."""

        def call(shard: Shard, topic: bytes, some: list[DeadTask]) -> Command:
            keys = [shard.pool, shard.attempts, shard.outcome, shard.done]
            keys += [shard.bucket(Bucket.DEAD, topic), shard.wakes[Bucket.DEAD]]
            arguments: list[Argument] = [topic, latest]
            for task in some:
                remembered = task.own_id and remember_until is not None
                arguments += [pack_id(task.id), remember_until or "" if remembered else ""]
            return scripts.SWEEP.call(keys, arguments)

        return as_bools(await fan_out(self._client, "sweep", dead, self._lane, call))

    def _lane(self, task: ExpiredTask | DeadTask) -> tuple[Shard, bytes]:
        return self._keys.shards[task.shard], task.topic.encode()


def _failures(shard: Shard, _: bytes, places: Sequence[tuple[Shard, bytes]]) -> Command:
    return ("HMGET", shard.outcome, *(parse_expiry_member(member)[1] for _, member in places))


def _expiring(shard: Shard, member: bytes, stored: bytes | None) -> ExpiredTask:
    topic, id = parse_expiry_member(member)
    return ExpiredTask(unpack_id(id), topic.decode(), shard.index, parse_failure(stored), stored or b"")


def _dead(wake: DueTopic, packed: bytes, body: bytes | None) -> DeadTask:
    id = unpack_id(packed)
    task = None if body is None else decode_task(id, body)
    return DeadTask(id, wake.topic, wake.shard, isinstance(task, Task) and task.own_id)
