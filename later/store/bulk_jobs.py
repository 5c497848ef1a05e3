"""Counts of bulk jobs and of their runs, exact even if batches are sent twice.

`create` counts what it creates, in the same step. The batch as a whole is counted in the same round trip, under a
digest of its items, so that one that is sent again counts once. Existing items are valid ones that were not created.
If items of a batch fail, they may be sent again alone or with the whole batch: both count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from later.core.errors import LaterError, NotFound, Refused
from later.core.task import Task
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys, counter_name
from later.store.scripts import Argument, Command
from later.store.types import JobBatch, JobCounts


def batch_digest(items: Sequence[bytes], tasks: Sequence[Task | Refused]) -> bytes:
    """Return the digest by which a job knows a batch that is sent again: of the ids of its tasks, in their order.

    An item that was refused, or has no id of its own, is known by its text: a task's other fields may change, such as
    a time that is spread over a window from now on.
    """
    texts = [
        task.id.encode() if isinstance(task, Task) and task.own_id else item
        for item, task in zip(items, tasks, strict=True)
    ]
    return blake2b(b"\n".join(texts), digest_size=12).digest()


class BulkJobs:
    """Counts batches into jobs. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def count_batch(self, batch: JobBatch, valid: int, rest: bytes = b"") -> None:
        """Set the number of the batch's valid items, in place of what was counted under its digest before.

        `rest` is the digest of those that failed: if the whole batch is counted again, its rest no longer counts.
        """
        await self._client.execute("count_batch", count_batch_command(self._keys, batch, valid, rest))

    async def uncount_failed(
        self, batch: JobBatch, items: Sequence[bytes], tasks: Sequence[Task | Refused], answers: Sequence[object]
    ) -> None:
        """Count a batch again without its failed items, because they are sent again, alone or with the whole batch.

        Tasks that the store has refused count as refused.

        `answers` has an entry for each item: a LaterError if it was refused, or has failed in the store, or a result.
        """
        failed = [i for i, a in enumerate(answers) if isinstance(a, LaterError) and not isinstance(a, Refused)]
        refused = sum(isinstance(answer, Refused) for answer in answers)
        valid = len(answers) - refused - len(failed)
        if failed or refused > batch.refused:
            rest = batch_digest([items[i] for i in failed], [tasks[i] for i in failed]) if failed and valid else b""
            await self.count_batch(batch._replace(refused=refused), valid, rest)

    async def counts(self, job: str, run: str | None = None) -> JobCounts:
        """Return the counts of a job, or of one run of it.

        Raises:
            NotFound: nothing was counted into it, or it was forgotten.
        """
        [counts] = await self.counts_of([job], run)
        if counts is None:
            raise NotFound(counter_name(job, run))
        return counts

    async def counts_of(self, jobs: Sequence[str], run: str | None = None) -> list[JobCounts | None]:
        """Return the counts of each job, or of one run of each; None where nothing was counted, or it was forgotten."""
        commands: list[Command] = []
        for job in jobs:
            name = counter_name(job, run)
            commands += [("HGET", shard.job(name), "created") for shard in self._keys.shards]
            commands.append(("HMGET", self._keys.shard_of(job).job(name), "valid", "refused"))
        answers = await self._client.execute_all("job", commands)
        size = len(self._keys.shards) + 1
        return [_counts(answers[start : start + size]) for start in range(0, len(answers), size)]


def _counts(answers: Sequence[Any]) -> JobCounts | None:
    """Return a job's counts: from what each shard has created, and then the numbers of valid and refused items."""
    *created, (valid, refused) = answers
    if valid is None and refused is None and not any(created):
        return None
    total_created = sum(int(count or 0) for count in created)
    return JobCounts(total_created, max(int(valid or 0) - total_created, 0), int(refused or 0))


def count_batch_command(keys: Keys, batch: JobBatch, valid: int, rest: bytes = b"") -> Command:
    """Return the command that counts a batch with so many valid items; `Tasks.create` sends it with the items."""
    shard, counters = keys.shard_of(batch.job), batch.counters
    arguments: list[Argument] = [batch.digest, valid, batch.refused, rest]
    for name in counters:
        arguments += [name, batch.forget_at]
    return scripts.COUNT_BATCH.call([shard.jobs, *map(shard.job, counters)], arguments)
