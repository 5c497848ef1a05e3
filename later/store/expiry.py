"""The ends of tasks without a delivery: a ttl ends while the task waits, or a dead task was kept for long enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from later.core.errors import LaterError
from later.core.policy import Policy
from later.core.retry import Failure, encode_failure, is_expired
from later.core.task import Task, decode_task_or_error, pack_id, unpack_id
from later.core.task_names import name_of, pack_remembered
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import MAX_BODIES, UNREAD, parse_attempts, parse_failure, raise_errors
from later.store.fanout import MAX_READ_BYTES, fan_out, parse_flags
from later.store.keys import Bucket, Keys, ShardTopic, expiry_member, parse_expiry_member
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import Claim, DeadTask, DeadTopics, DueTopic, ExpiredTask

NO_CURSORS: Mapping[int, int] = {}
"""Cursors of a scan that is at its start, or at its end."""


class Expiry:
    """Lets tasks expire, and removes dead tasks. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def expired_tasks(self, now: int, shards: Sequence[int] | None = None) -> list[ExpiredTask]:
        """Return tasks whose ttl has ended, at most 500 of each of these shards (None: of all) that is there."""
        chosen = self._keys.select(shards)
        found = await self._client.execute_available(
            "expiring",
            [("ZRANGEBYSCORE", shard.expiry, "-inf", now, "LIMIT", 0, MAX_TASKS) for shard in chosen],
            missing=[],
        )
        members = [
            (shard, *parse_expiry_member(member))
            for shard, members in zip(chosen, found, strict=True)
            for member in members
        ]
        failures = await fan_out(
            self._client,
            "expiring",
            members,
            lambda member: ShardTopic(member[0], b""),
            lambda target, some: ("HMGET", target.shard.outcome, *(id for _, _, id in some)),
        )
        return [
            ExpiredTask(unpack_id(id), topic.decode(), shard.index, parse_failure(failure), failure or b"")
            for (shard, topic, id), failure in zip(members, failures, strict=True)
            if not isinstance(failure, LaterError)
        ]

    async def ends(self, tasks: Sequence[tuple[str, str]]) -> list[int | None]:
        """Return when the ttls of tasks, by topic and id, end; None: never. It may be later than the tasks say.

        See `claim_records.py`.
        """
        ends = await fan_out(
            self._client,
            "read",
            tasks,
            lambda task: ShardTopic(self._keys.shard_of(task[1]), task[0].encode()),
            lambda target, some: (
                "ZMSCORE", target.shard.expiry, *(expiry_member(target.topic, pack_id(id)) for _, id in some)
            ),
        )  # fmt: skip
        return [None if end is None else int(float(end)) for end in raise_errors(ends)]

    async def attempts(self, tasks: Sequence[ExpiredTask]) -> list[int | LaterError]:
        """Return how many attempts of waiting tasks have begun."""
        entries = await fan_out(
            self._client,
            "read",
            tasks,
            lambda task: ShardTopic(self._keys.shards[task.shard], b""),
            lambda target, some: ("HMGET", target.shard.attempts, *(pack_id(task.id) for task in some)),
        )
        return [entry if isinstance(entry, LaterError) else parse_attempts(entry, Bucket.DEAD)[0] for entry in entries]

    async def move_ends(self, claims: Sequence[Claim], now: int) -> list[Claim]:
        """Return claims of which the tasks whose ttls are over at `now` (ms) have the ends that `ends` returns.

        Claims of tasks whose ends cannot be read are left out: these tasks are neither dead nor handed out.
        """
        tasks = {claim.id: task for claim in claims if isinstance(task := claim.task, Task) and is_expired(task, now)}
        if not tasks:
            return [*claims]
        try:
            ends = await self.ends([(task.topic, id) for id, task in tasks.items()])
        except LaterError:
            return [claim for claim in claims if claim.id not in tasks]
        moved = {
            task.id: msgspec.structs.replace(task, expires_at=end or task.expires_at)
            for task, end in zip(tasks.values(), ends, strict=True)
        }
        return [msgspec.structs.replace(claim, task=moved.get(claim.id, claim.task)) for claim in claims]

    async def expire(self, deaths: Sequence[tuple[ExpiredTask, Failure]], now: int) -> list[bool | LaterError]:
        """Let waiting tasks die, delay or error → dead; False for one that is in flight, or was removed."""

        def build(target: ShardTopic, some: list[tuple[ExpiredTask, Failure]]) -> Command:
            return self.expire_command(target, some, now)

        return await fan_out(self._client, "expire", deaths, lambda death: self._locate(death[0]), build, parse_flags)

    def expire_command(self, target: ShardTopic, deaths: Sequence[tuple[ExpiredTask, Failure]], now: int) -> Command:
        """Return the command by which `expire` lets tasks of one topic in one shard die."""
        shard, topic = target
        delay, unack, error, dead = shard.buckets(topic)
        keys = [shard.outcome, delay, unack, error, dead]
        keys += [shard.wakes[bucket] for bucket in (Bucket.DELAY, Bucket.ERROR, Bucket.DEAD)] + [shard.expiry]
        arguments: list[Argument] = [topic, now]
        for task, failure in deaths:
            arguments += [pack_id(task.id), task.stored_failure, encode_failure(failure)]
        return scripts.EXPIRE.call(keys, arguments)

    async def topics_with_dead(
        self, latest: int, limit: int, cursors: Mapping[int, int] = NO_CURSORS, shards: Sequence[int] | None = None
    ) -> DeadTopics:
        """Return some of the topics in which a task had died by `latest` (ms), about `limit` of each shard.

        `shards` are the indices of those to look at (None: all); those that are away are left out. `cursors` are those
        of the last call, by shard; if they are empty again, all topics were seen.
        """
        chosen = self._keys.select(shards)
        firsts = await self._client.execute_available(
            "sweep",
            [("ZRANGE", shard.wakes[Bucket.DEAD], 0, 0, "WITHSCORES") for shard in chosen],
            missing=[],
        )
        with_dead = [
            shard for shard, first in zip(chosen, firsts, strict=True) if first and int(float(first[1])) <= latest
        ]
        scans: list[Command] = [
            ("ZSCAN", shard.wakes[Bucket.DEAD], cursors.get(shard.index, 0), "COUNT", limit) for shard in with_dead
        ]
        answers = await self._client.execute_optional("sweep", scans, missing=(0, []))
        topics: list[DueTopic] = []
        next_cursors: dict[int, int] = {}
        for shard, (cursor, entries) in zip(with_dead, answers, strict=True):
            if int(cursor):
                next_cursors[shard.index] = int(cursor)
            topics += [DueTopic(int(float(at)), topic.decode(), shard.index) for topic, at in entries]
        return DeadTopics([topic for topic in topics if topic.at <= latest], next_cursors)

    async def dead_tasks(self, topic: DueTopic, latest: int, now: int, policy: Policy) -> list[DeadTask]:
        """Return the first of a topic's tasks that had died by `latest` (ms), to be removed at `now` (ms).

        Ids that callers chose are to be remembered, as the tasks say or the topic's policy.
        """
        shard = self._keys.shards[topic.shard]
        bucket = shard.bucket(Bucket.DEAD, topic.topic.encode())
        ids = await self._client.execute("sweep", ("ZRANGEBYSCORE", bucket, "-inf", latest, "LIMIT", 0, MAX_BODIES))
        if not ids:
            return []
        tasks: list[DeadTask] = []
        bodies = await self._client.execute("sweep", scripts.READ_BODIES.call([shard.pool], [MAX_READ_BYTES, *ids]))
        for packed, body in zip(ids, bodies, strict=True):
            if body == UNREAD:
                break
            id = unpack_id(packed)
            task = None if body is None else decode_task_or_error(id, body)
            dead = DeadTask(id, topic.topic, topic.shard)
            if isinstance(task, Task) and task.own_id:
                until = policy.remember_until(now, task.remember_ms)
                dead = dead._replace(name=name_of(task), remember_until=until)
            tasks.append(dead)
        return tasks

    async def sweep(self, dead: Sequence[DeadTask], latest: int) -> list[bool | LaterError]:
        """Remove tasks that had died by `latest` (ms)."""

        def build(target: ShardTopic, some: list[DeadTask]) -> Command:
            shard, topic = target
            keys = [shard.pool, shard.attempts, shard.outcome, shard.done]
            keys += [shard.bucket(Bucket.DEAD, topic), shard.wakes[Bucket.DEAD]]
            arguments: list[Argument] = [topic, latest]
            for task in some:
                arguments += [pack_id(task.id), "" if task.remember_until is None else task.remember_until]
                arguments.append(pack_remembered(task.name or task.id))
            return scripts.SWEEP.call(keys, arguments)

        return await fan_out(self._client, "sweep", dead, self._locate, build, parse_flags)

    def _locate(self, task: ExpiredTask | DeadTask) -> ShardTopic:
        return ShardTopic(self._keys.shards[task.shard], task.topic.encode())
