"""The list of bulk jobs, page by page: the one that is forgotten last comes first.

A job is among the jobs of each shard that has tasks of it. It is listed from the shard that counts its batches alone,
because there its time is that of its last batch. Runs lie between the jobs, and so do the jobs of other namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from later.store import scripts
from later.store.bulk_jobs import BulkJobs
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys, Shard, job_of_counter
from later.store.scripts import Argument, Command
from later.store.types import JobPage, JobPosition, ListedJob

MAX_EXAMINED = 100_000
"""Entries of all shards that one page examines, or a few more."""
ENTRIES_PER_CALL = 500
"""Entries that one script call examines: in less than a millisecond."""
COUNTED_AT_ONCE = 100
"""Jobs whose counts one round trip reads."""


class JobList:
    """Lists bulk jobs. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys, bulk_jobs: BulkJobs) -> None:
        self._client = client
        self._keys = keys
        self._bulk_jobs = bulk_jobs

    async def page(self, limit: int, after: JobPosition | None = None, prefix: str = "") -> JobPage:
        """Return the first `limit` jobs after a position, or only those whose ids begin with a namespace's prefix.

        A page goes on from its last job, so what it says depends on no other's. It is shorter only at the end, or if
        `MAX_EXAMINED` entries were none of the caller's; if it has no job then, it goes on from a time.
        """
        sources = [_ShardJobs(shard, self._keys, after) for shard in self._keys.shards]
        examined = 0
        while True:
            examined += await self._read([source for source in sources if not source.ended], limit, prefix)
            read_to = max((source.read_to for source in sources if not source.ended), default=None)
            jobs = [job for source in sources for job in source.jobs if read_to is None or job >= read_to]
            if read_to is None or len(jobs) > limit or examined >= MAX_EXAMINED:
                break
        jobs.sort(reverse=True)
        listed = await self._count(jobs[:limit])
        if len(jobs) > limit:
            return JobPage(listed, jobs[limit - 1])
        if read_to is None:
            return JobPage(listed, None)
        return JobPage(listed, jobs[-1] if jobs else JobPosition(read_to.forget_at + 1, ""))

    async def _read(self, sources: Sequence[_ShardJobs], limit: int, prefix: str) -> int:
        """Read the next entries of these shards, and return how many were examined."""
        arguments: list[Argument] = [f"/{prefix}" if prefix else "", limit + 1, ENTRIES_PER_CALL]
        commands: list[Command] = [
            scripts.LIST_JOBS.call([source.shard.jobs], [*source.start, *arguments]) for source in sources
        ]
        answers = await self._client.execute_all("list_jobs", commands)
        return sum(source.add(answer) for source, answer in zip(sources, answers, strict=True))

    async def _count(self, positions: Sequence[JobPosition]) -> list[ListedJob]:
        """Return these jobs with their counts, without those that were forgotten meanwhile."""
        listed: list[ListedJob] = []
        for start in range(0, len(positions), COUNTED_AT_ONCE):
            part = positions[start : start + COUNTED_AT_ONCE]
            jobs = [job_of_counter(position.name) for position in part]
            for position, job, counts in zip(part, jobs, await self._bulk_jobs.counts_of(jobs), strict=True):
                if counts is not None:
                    listed.append(ListedJob(job, position.forget_at, counts))
        return listed


class _ShardJobs:
    """The jobs that one shard counts: those that were read, and the position that was read to."""

    def __init__(self, shard: Shard, keys: Keys, after: JobPosition | None) -> None:
        self.shard = shard
        self.jobs: list[JobPosition] = []
        self.ended = False
        self.start: Sequence[Argument] = ("", "") if after is None else after
        self._keys = keys

    @property
    def read_to(self) -> JobPosition:
        score, name = self.start
        return JobPosition(int(score), str(name))

    def add(self, answer: Sequence[Any]) -> int:
        """Take over what a call has read, and return how many entries it examined."""
        examined, score, name, *found = answer
        self.ended = not score
        self.start = (_time(score), name.decode()) if score else self.start
        for raw, forget_at in pairs(found):
            name = raw.decode()
            if self._keys.shard_of(job_of_counter(name)) is self.shard:
                self.jobs.append(JobPosition(_time(forget_at), name))
        return int(examined)


def _time(score: bytes) -> int:
    return int(float(score))
