"""Removal of what nobody needs any more: remembered ids, counts of bulk jobs, names of topics."""

from __future__ import annotations

from collections.abc import Sequence

from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.scripts import Command
from later.store.topic_index import TopicIndex

MAX_JOBS = 100
"""The most jobs of each shard that one `trim` forgets."""


class Maintenance:
    """Forgets what was remembered for long enough, and checks the index of topics."""

    def __init__(self, client: StoreClient, keys: Keys, topic_index: TopicIndex) -> None:
        self._client = client
        self._keys = keys
        self._topic_index = topic_index

    async def trim(self, now: int, limit: int, indices: Sequence[int] | None = None) -> int:
        """Forget ids and bulk jobs whose time has come, and check the next few names of the index of topics.

        It takes one round trip, and further ones only if there are jobs to forget or names to put right. Return how
        many ids were forgotten, at most `limit` of each of the shards with these indices (None: all) that is there.

        Raises:
            StoreDown: none is there.
        """
        shards = self._keys.select(indices)
        ids = [scripts.TRIM.call([shard.done], [now, limit]) for shard in shards]
        jobs: list[Command] = [("ZRANGEBYSCORE", shard.jobs, "-inf", now, "LIMIT", 0, MAX_JOBS) for shard in shards]
        commands = [*ids, *jobs, self._topic_index.next_check()]
        *answers, names = await self._client.execute_available("trim", commands, missing=None)
        forget = [
            scripts.FORGET_JOB.call([shard.job(job.decode()), shard.jobs], [job, now])
            for shard, found in zip(shards, answers[len(shards) :], strict=True)
            for job in found or ()
        ]
        await self._client.execute_optional("trim", forget, missing=None)
        await self._topic_index.finish_check(names)
        return sum(forgotten or 0 for forgotten in answers[: len(shards)])
