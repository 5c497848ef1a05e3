"""Counts of bulk jobs, exact even if batches are sent twice.

`create` counts what it creates, in the same step. The batch as a whole is counted in the same round trip, under a
digest of its bytes, so that one that is sent again counts once. Existing items are valid ones that were not created.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from later.core.errors import LaterError, NotFound, Refused
from later.store import scripts
from later.store.client import Client
from later.store.keys import Keys
from later.store.scripts import Argument, Command
from later.store.types import JobBatch, JobCounts

TRIM_LIMIT = 100
"""The most jobs of each shard that one `trim` forgets."""


def batch_digest(content: bytes) -> bytes:
    """Return the digest by which a job knows a batch that is sent again."""
    return blake2b(content, digest_size=12).digest()


class BulkJobs:
    """Counts batches into jobs. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def count_batch(self, batch: JobBatch, valid: int) -> None:
        """Set the number of the batch's valid items, in place of what was counted under its digest before."""
        await self._client.execute("count_batch", count_batch_command(self._keys, batch, valid))

    async def uncount_failed(self, batch: JobBatch, answers: Sequence[object]) -> None:
        """Count a batch again without its failed items, because they are sent again, perhaps in another batch.

        `answers` has an entry for each item: a Refused, another LaterError if it failed, or a result.
        """
        failed = sum(isinstance(answer, LaterError) and not isinstance(answer, Refused) for answer in answers)
        if failed:
            await self.count_batch(batch, len(answers) - batch.refused - failed)

    async def counts(self, job: str) -> JobCounts:
        """Return the job's counts. Raises NotFound if nothing was counted into it, or if it was forgotten."""
        created = await self._client.execute_all("job", [("HGET", s.job(job), "created") for s in self._keys.shards])
        own_shard = self._keys.shard_of(job)
        valid, refused = await self._client.execute("job", ("HMGET", own_shard.job(job), "valid", "refused"))
        if valid is None and refused is None and not any(created):
            raise NotFound(job)
        total_created = sum(int(count or 0) for count in created)
        return JobCounts(total_created, max(int(valid or 0) - total_created, 0), int(refused or 0))

    async def trim(self, now: int) -> None:
        """Forget jobs into which nothing was counted for long enough."""
        found = await self._client.execute_all(
            "trim",
            [("ZRANGEBYSCORE", s.jobs, "-inf", now, "LIMIT", 0, TRIM_LIMIT) for s in self._keys.shards],
        )
        commands = [
            scripts.FORGET_JOB.call([shard.job(job.decode()), shard.jobs], [job, now])
            for shard, jobs in zip(self._keys.shards, found, strict=True)
            for job in jobs
        ]
        await self._client.execute_all("trim", commands)


def count_batch_command(keys: Keys, batch: JobBatch, valid: int) -> Command:
    """Return the command that counts a batch with so many valid items; `Tasks.create` sends it with the items."""
    shard = keys.shard_of(batch.job)
    arguments: list[Argument] = [batch.job, batch.forget_at, batch.digest, valid, batch.refused]
    return scripts.COUNT_BATCH.call([shard.job(batch.job), shard.jobs], arguments)
