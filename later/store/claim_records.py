"""Claims of consumers that take tasks of one topic together, under one id, as Zaqar's API does.

A claim under an id is a pull like any other: each task has a lease and a fence of its own. In the same step a record is
written, a hash with a TTL, in each shard that gives tasks: how long they were claimed for, and the fence of each task.
In `attempts` each task names the record. The record is gone when its leases end; if it is lost before, the tasks come
back when their leases end. Every verb goes by the fences, so a record that lists a task that another claim has by now
does no harm.

While it is claimed, a task does not expire, nor during the grace after that: a claim moves the end of its ttl in the
index of such tasks, and never to an earlier time. The task's body keeps its own end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from secrets import token_hex
from typing import NamedTuple

import msgspec

from later.core.clock import Interval
from later.core.errors import LaterError, NotFound, StoreDown
from later.core.lease import Lease
from later.core.task import Task, pack_id, unpack_id
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import raise_errors
from later.store.expiry import Expiry
from later.store.keys import CLAIM_NAME_CHARS, Bucket, Keys, Shard
from later.store.lookup import Lookup
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.pulls import Pulls
from later.store.scripts import Argument, Command
from later.store.types import ClaimRecord, TaskRecord, decode_record

POP_LEASE_MS = 60_000
"""The leases of tasks that are claimed to be removed at once."""


class HeldTask(NamedTuple):
    """A task that a claim holds: its ttl ends when the index says. `attempt` is the number of its claim."""

    task: Task
    attempt: int


class OpenClaim(NamedTuple):
    """A claim that holds one task at least, and its tasks by due time and id."""

    record: ClaimRecord
    tasks: list[HeldTask]


class _Part(NamedTuple):
    """The part of a claim's record that is in one shard, and the leases of its tasks there."""

    shard: Shard
    record: ClaimRecord
    leases: list[Lease]


class ClaimRecords:
    """Claims under an id. Every method raises StoreDown; where one writes, it is not known then whether it did."""

    def __init__(self, client: StoreClient, keys: Keys, pulls: Pulls, lookup: Lookup, expiry: Expiry) -> None:
        self._client = client
        self._keys = keys
        self._pulls = pulls
        self._lookup = lookup
        self._expiry = expiry

    async def claim(
        self, topic: str, ttl_ms: int, grace_ms: int, limit: int, now: Interval, max_claims: int = 0
    ) -> PullResult:
        """Claim due tasks together, for `ttl_ms`; each has the `claim_id`. `max_claims` is that of the topic's policy.

        One round trip, or two with several shards.
        """
        record = ClaimRecord(token_hex(CLAIM_NAME_CHARS // 2), topic, now.low, ttl_ms, grace_ms)
        return await self._pull(PullRequest([PullTopic(topic, limit, ttl_ms, max_claims)], limit, record), now)

    async def pop(self, topic: str, limit: int, now: Interval, max_claims: int = 0) -> PullResult:
        """Claim due tasks and remove them; return those that this has removed.

        A task is also returned if it is not known whether it was removed: it may come again, but it is not lost.

        Two round trips, or three with several shards; one more if the own ttl of a task has ended.
        """
        request = PullRequest([PullTopic(topic, limit, POP_LEASE_MS, max_claims)], limit, has_grace=True)
        result = await self._pull(request, now)
        answers: list[bool | LaterError]
        try:
            answers = await self._pulls.ack([pulled.lease for pulled in result.tasks], now.high)
        except StoreDown as error:
            answers = [error] * len(result.tasks)
        popped = [
            pulled
            for pulled, answer in zip(result.tasks, answers, strict=True)
            if answer is True or (isinstance(answer, StoreDown) and answer.unknown)
        ]
        if not popped:
            raise_errors(answers)
        return result._replace(tasks=popped)

    async def read(self, topic: str, claim_id: str, now: Interval) -> OpenClaim | None:
        """Return a claim of a topic with the tasks that it still holds; None if it holds none. Two round trips."""
        parts = await self._read_parts(topic, claim_id, now)
        leases = {lease.id: lease for part in parts for lease in part.leases}
        if not leases:
            return None
        found, ends = await asyncio.gather(
            self._lookup.query([*leases]), self._expiry.ends([(topic, id) for id in leases])
        )
        held = [
            record
            for record in found
            if isinstance(record, TaskRecord)
            and (lease := record.lease(now.low)) is not None
            and (record.topic, lease.fence) == (topic, leases[record.id].fence)
        ]
        if not held:
            raise_errors([record for record in found if not isinstance(record, NotFound)])
            return None
        ends_at = dict(zip(leases, ends, strict=True))
        tasks = [
            HeldTask(
                msgspec.structs.replace(record.task, expires_at=ends_at[record.id] or record.task.expires_at),
                record.attempts,
            )
            for record in held
            if isinstance(record.task, Task)
        ]
        tasks.sort(key=lambda claimed: (leases[claimed.task.id].due_at, pack_id(claimed.task.id)))
        return OpenClaim(max((part.record for part in parts), key=lambda record: record.since), tasks)

    async def update(self, topic: str, claim_id: str, ttl_ms: int, grace_ms: int, now: Interval) -> int:
        """Let a claim last for `ttl_ms` from now on; return how many tasks it holds. Two round trips."""
        record = ClaimRecord(claim_id, topic, now.low, ttl_ms, grace_ms)
        commands: list[Command] = []
        for shard, _, leases in await self._read_parts(topic, claim_id, now):
            keys = [shard.attempts, shard.bucket(Bucket.UNACK, topic.encode()), shard.wakes[Bucket.UNACK]]
            keys += [shard.expiry, shard.claim_record(claim_id)]
            arguments: list[Argument] = [topic, record.lease_end, record.encode(), ttl_ms, record.live_until]
            for lease in leases:
                arguments += [pack_id(lease.id), lease.fence]
            commands.append(scripts.EXTEND.call(keys, arguments))
        return sum(sum(answer) for answer in await self._client.execute_all("extend", commands))

    async def release(self, topic: str, claim_id: str, now: Interval) -> list[Lease]:
        """Give back the tasks that a claim holds, due as before and without an attempt; return their leases.

        Two round trips.
        """
        parts = await self._read_parts(topic, claim_id, now)
        return await self._release([lease for part in parts for lease in part.leases], claim_id)

    async def give_back(self, tasks: Sequence[PulledTask]) -> list[Lease]:
        """Give back tasks of one claim that nobody gets, as `release` does. One round trip."""
        return await self._release([pulled.lease for pulled in tasks], tasks[0].claim_id)

    async def ends(self, tasks: Sequence[TaskRecord]) -> dict[str, int]:
        """Return, by id, the ends of the ttls (ms) of those tasks that have one, as claims have moved them."""
        mortal = [task for record in tasks if isinstance(task := record.task, Task) and task.expires_at is not None]
        ends = await self._expiry.ends([(task.topic, task.id) for task in mortal])
        return {task.id: end or task.expires_at or 0 for task, end in zip(mortal, ends, strict=True)}

    async def _pull(self, request: PullRequest, now: Interval) -> PullResult:
        [result] = await self._pulls.claim([request], now)
        if isinstance(result, LaterError):
            raise result
        return result

    async def _release(self, leases: Sequence[Lease], claim_id: str) -> list[Lease]:
        if not leases:
            return []
        shards = self._keys.shards_of_claim(claim_id)
        answers = await self._pulls.release(leases, [("DEL", shard.claim_record(claim_id)) for shard in shards])
        released = [lease for lease, answer in zip(leases, answers, strict=True) if answer is True]
        if not released:
            raise_errors(answers)
        return released

    async def _read_parts(self, topic: str, claim_id: str, now: Interval) -> list[_Part]:
        """Return the parts of a claim's record; none if it is another topic's, or its leases have ended."""
        shards = self._keys.shards_of_claim(claim_id)
        commands: list[Command] = [("HGETALL", shard.claim_record(claim_id)) for shard in shards]
        parts: list[_Part] = []
        for shard, fields in zip(shards, await self._client.execute_all("read", commands), strict=True):
            written = fields.pop(b"", None)
            if written is None:
                continue
            record = decode_record(claim_id, written)
            if record.topic != topic or record.lease_end <= now.low:
                continue
            leases: list[Lease] = []
            for packed, entry in fields.items():
                fence, due_at = entry.split(b" ")
                leases.append(Lease(topic=topic, id=unpack_id(packed), fence=int(fence), due_at=int(due_at)))
            parts.append(_Part(shard, record, leases))
        return parts
