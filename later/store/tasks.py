"""The memory: one method for each thing that can happen to a task.

Methods take many tasks at once and make one round trip. Where single tasks can fail on their own, the answers say so
one by one: a `LaterError` in the place of an answer is what that task's caller is to be told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from later.core.errors import LaterError
from later.core.task import Task, encode, pack_id
from later.store import scripts
from later.store.bulk_jobs import count_batch_command
from later.store.client import Client
from later.store.codec import (
    as_bools,
    earliest_score,
    pairs,
    parse_claims,
    parse_time,
    settle_arguments,
)
from later.store.fanout import Lane, fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import (
    Claim,
    ClaimRequest,
    ClaimResult,
    DueTopic,
    DueTopics,
    JobBatch,
    ReleaseResult,
    Settlement,
    WorkerSnapshot,
)

MAX_CLAIM_BYTES = 32 * 1024 * 1024
"""How much one claim may answer, all its topics together: more might not come through in the store's timeout."""


class Tasks:
    """Tasks in the store. `clock` is the store's own, kept up by each new connection and by `now`."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def create(self, tasks: Sequence[Task], batch: JobBatch | None = None) -> list[bool | LaterError]:
        """Store new tasks, each into pool and delay at once; False where the caller's id is known already.

        With a `batch`, they are counted into its job: what is created in the same step, the batch in the same round
        trip. Raises StoreDown: nobody can know.
        """
        job, forget_job_at = ("", 0) if batch is None else (batch.job, batch.forget_at)

        def call(shard: Shard, topic: bytes, some: list[Task]) -> Command:
            keys = [shard.pool, shard.done, shard.bucket(Bucket.DELAY, topic), shard.wakes[Bucket.DELAY], shard.expiry]
            arguments: list[Argument] = [topic, job, forget_job_at]
            if job:
                keys += [shard.job(job), shard.jobs]
            for task in some:
                own = int(task.own_id)
                flags: Argument = own if task.expires_at is None else f"{own}{task.expires_at}"
                arguments += [pack_id(task.id), encode(task), task.execute_at, flags]
            return scripts.CREATE.call(keys, arguments)

        count = [] if batch is None else [count_batch_command(self._keys, batch, len(tasks))]
        answers = await fan_out(
            self._client, "create", tasks, lambda task: (self._keys.shard_of(task.id), task.topic.encode()), call, count
        )
        return [answer if isinstance(answer, LaterError) else bool(answer) for answer in answers]

    async def due_topics(self, bucket: Bucket, limit: int) -> DueTopics:
        """The `limit` earliest wake entries of each shard; of delay, those that are held too. Raises StoreDown."""
        held = self._look_held(limit) if bucket is Bucket.DELAY else []
        answers = await self._client.execute_all("look", [*self._look(bucket, limit), *held])
        shards = len(self._keys.shards)
        return self._look_of(limit, answers[:shards], answers[shards:])

    async def worker_snapshot(self, limit: int, *, held: bool = True) -> WorkerSnapshot:
        """The same of delay, and when the first topics of unack and error are to be looked at. Raises StoreDown.

        One round trip for all that a worker has to know each tick, with the store's time in it. Topics that are held
        are left out unless `held`.
        """
        heads = [*self._look(Bucket.UNACK, 1), *self._look(Bucket.ERROR, 1)]
        holds = self._look_held(limit) if held else []
        answers = await self._client.execute_timed("look", [*heads, *self._look(Bucket.DELAY, limit), *holds])
        shards = len(self._keys.shards)
        unack, error, delay, held_back = (answers[start : start + shards] for start in range(0, 4 * shards, shards))
        ends = [math.ceil(-float(at)) for answer in held_back for _, at in pairs(answer)]
        return WorkerSnapshot(
            self._look_of(limit, delay, held_back), ends, earliest_score(unack), earliest_score(error)
        )

    def _look(self, bucket: Bucket, limit: int) -> list[Command]:
        return [
            ("ZRANGE", shard.wakes[bucket], 0, "+inf", "BYSCORE", "LIMIT", 0, limit, "WITHSCORES")
            for shard in self._keys.shards
        ]

    def _look_held(self, limit: int) -> list[Command]:
        """Topics that are held until a moment, which is their score below zero (see `hold`), the earliest first."""
        return [
            ("ZRANGE", shard.wakes[Bucket.DELAY], "(0", "(-inf", "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES")
            for shard in self._keys.shards
        ]

    def _look_of(self, limit: int, *ranges: Sequence[list[bytes]]) -> DueTopics:
        wakes, cut_at = list[DueTopic](), list[int]()
        for answers in filter(None, ranges):
            for shard, answer in zip(self._keys.shards, answers, strict=True):
                wakes += [
                    DueTopic(math.ceil(abs(float(at))), topic.decode(), shard.index) for topic, at in pairs(answer)
                ]
                if len(answer) >= 2 * limit:
                    cut_at.append(wakes[-1].at)
        return DueTopics(sorted(wakes), min(cut_at, default=None))

    async def claim(self, wants: Sequence[ClaimRequest], now: int, lease_end: int) -> list[ClaimResult | LaterError]:
        """Take due tasks in hand, delay → unack, each want at most 500. Raises StoreDown: nobody can know.

        `lease_end` is that of topics whose leases are as long as most.

        Large tasks come a few at a time: of each topic at least one, but no more than its part of `MAX_CLAIM_BYTES`.
        """
        max_bytes = MAX_CLAIM_BYTES // max(len(wants), 1)
        commands = [self._claim(want, now, lease_end, max_bytes) for want in wants]
        answers = await self._client.execute_each("claim", commands)
        return [
            answer if isinstance(answer, LaterError) else parse_claims(want, answer, lease_end)
            for want, answer in zip(wants, answers, strict=True)
        ]

    def _claim(self, want: ClaimRequest, now: int, lease_end: int, max_bytes: int) -> Command:
        shard, topic = self._keys.shards[want.shard], want.topic.encode()
        keys = [
            shard.bucket(Bucket.DELAY, topic),
            shard.bucket(Bucket.UNACK, topic),
            shard.pool,
            shard.attempts,
        ]
        keys += [shard.outcome, shard.fence, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
        arguments: list[Argument] = [topic, now, min(want.limit, MAX_TASKS), lease_end + want.lease_extra_ms, max_bytes]
        arguments += ["" if want.hold_until is None else want.hold_until, int(want.has_permits)]
        return scripts.CLAIM.call(keys, arguments)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        """Carry out verdicts: unack → gone, error or dead; False where the lease is another's by now.

        Raises StoreDown: nobody can know; it may be settled again, for only the first one counts.
        """

        def call(shard: Shard, topic: bytes, some: list[Settlement]) -> Command:
            _, unack, error, dead = shard.buckets(topic)
            keys = [shard.pool, shard.attempts, shard.outcome, shard.done, unack, error, dead]
            keys += [shard.wakes[Bucket.UNACK], shard.wakes[Bucket.ERROR], shard.wakes[Bucket.DEAD], shard.expiry]
            arguments: list[Argument] = [topic]
            for settlement in some:
                arguments += settle_arguments(settlement)
            return scripts.SETTLE.call(keys, arguments)

        return as_bools(await fan_out(self._client, "settle", settlements, lambda s: self._lane(s.claim), call))

    async def give_back(self, claims: Sequence[Claim]) -> list[bool | LaterError]:
        """Return claims that were not delivered, unack → delay; False where the lease is another's by now."""

        def call(shard: Shard, topic: bytes, some: list[Claim]) -> Command:
            delay, unack, _, _ = shard.buckets(topic)
            keys = [shard.attempts, delay, unack, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
            arguments: list[Argument] = [topic]
            for claim in some:
                arguments += [pack_id(claim.id), claim.fence, claim.due_at]
            return scripts.GIVE_BACK.call(keys, arguments)

        return as_bools(await fan_out(self._client, "give_back", claims, self._lane, call))

    async def release(self, bucket: Bucket, wakes: Sequence[DueTopic], now: int) -> list[ReleaseResult | LaterError]:
        """Move what has waited long enough, unack or error → delay, at most 500 of each topic. Raises StoreDown."""
        commands = []
        for _, name, index in wakes:
            shard, topic = self._keys.shards[index], name.encode()
            keys = [shard.bucket(bucket, topic), shard.bucket(Bucket.DELAY, topic)]
            keys += [shard.wakes[bucket], shard.wakes[Bucket.DELAY]]
            commands.append(scripts.RELEASE.call(keys, [topic, now, MAX_TASKS]))
        answers = await self._client.execute_each("release", commands)
        return [
            answer if isinstance(answer, LaterError) else ReleaseResult(answer[1], parse_time(answer[0]))
            for answer in answers
        ]

    async def trim(self, now: int, limit: int) -> int:
        """Forget ids that were remembered long enough, at most `limit` of each shard; how many. Raises StoreDown."""
        commands = [scripts.TRIM.call([shard.done], [now, limit]) for shard in self._keys.shards]
        return sum(await self._client.execute_all("trim", commands))

    def _lane(self, claim: Claim) -> Lane:
        return self._keys.shards[claim.shard], claim.topic.encode()
